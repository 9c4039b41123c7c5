-- A sample of the table, in order, to divide it into parts of similar size.
SELECT w.created_at AS at, w.id::text AS key
FROM horsies_workflows AS w TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR w.created_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR w.created_at < %(until)s::timestamptz)
ORDER BY w.created_at, w.id::text
