-- A sample of the table, in order, to divide it into parts of similar size.
SELECT s.snapshot_at AS at, s.worker_id::text AS key
FROM horsies_worker_states AS s TABLESAMPLE SYSTEM (%(percent)s::float4)
WHERE
    (%(since)s::timestamptz IS NULL OR s.snapshot_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR s.snapshot_at < %(until)s::timestamptz)
ORDER BY s.snapshot_at, s.worker_id
