-- A sample of the table, in order, to divide it into parts of similar size.
SELECT t.enqueued_at AS at, t.id::text AS key
FROM horsies_tasks AS t TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR t.enqueued_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR t.enqueued_at < %(until)s::timestamptz)
ORDER BY t.enqueued_at, t.id
