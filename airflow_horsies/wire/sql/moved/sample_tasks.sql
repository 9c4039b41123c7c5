-- A sample of the tables, in order, to divide them into parts of similar size.
SELECT sampled.at, sampled.id::text AS key
FROM (
    SELECT t.enqueued_at AS at, t.id
    FROM horsies_tasks AS t TABLESAMPLE SYSTEM (%(percent)s::float4)
    UNION ALL
    SELECT h.enqueued_at, h.task_id
    FROM horsies_task_history AS h TABLESAMPLE SYSTEM (%(percent)s::float4)
) AS sampled
WHERE
    (%(since)s::timestamptz IS NULL OR sampled.at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR sampled.at < %(until)s::timestamptz)
ORDER BY sampled.at, sampled.id
