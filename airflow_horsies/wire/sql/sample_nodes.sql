-- A sample of the table, in order, to divide it into parts of similar size.
SELECT n.created_at AS at, n.id::text AS key
FROM horsies_workflow_tasks AS n TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR n.created_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR n.created_at < %(until)s::timestamptz)
ORDER BY n.created_at, n.id::text
