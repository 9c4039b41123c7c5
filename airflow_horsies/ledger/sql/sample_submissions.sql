-- A sample of the table, in order, to divide it into parts of similar size.
SELECT s.submitted_at AS at, s.horsies_task_id::text AS key
FROM airflow_horsies.submissions AS s TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR s.submitted_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR s.submitted_at < %(until)s::timestamptz)
ORDER BY s.submitted_at, s.horsies_task_id
