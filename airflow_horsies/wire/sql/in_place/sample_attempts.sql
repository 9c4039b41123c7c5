-- A sample of the table, in order, to divide it into parts of similar size.
SELECT a.finished_at AS at, a.task_id::text AS key
FROM horsies_task_attempts AS a TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR a.finished_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR a.finished_at < %(until)s::timestamptz)
ORDER BY a.finished_at, a.task_id
