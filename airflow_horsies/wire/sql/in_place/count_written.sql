-- The number of attempts that each transaction wrote, oldest transaction first.
SELECT counted.written_by, count(*) AS attempts
FROM (
    SELECT now_at.number - ((now_at.number - a.xmin::text::bigint) & 4294967295) AS written_by
    FROM horsies_task_attempts AS a
    CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number) AS now_at
    WHERE %(since)s::timestamptz IS NULL OR a.finished_at >= %(since)s::timestamptz - interval '1 hour'
) AS counted
WHERE counted.written_by >= %(from_transaction)s::bigint AND counted.written_by < %(to_transaction)s::bigint
GROUP BY counted.written_by
ORDER BY counted.written_by
LIMIT %(limit)s
