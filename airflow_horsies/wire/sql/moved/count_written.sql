-- The number of attempts of the tasks that each transaction moved to the history, oldest transaction first.
SELECT counted.written_by, sum(counted.attempts)::bigint AS attempts
FROM (
    SELECT
        now_at.number - ((now_at.number - h.xmin::text::bigint) & 4294967295) AS written_by,
        jsonb_array_length(convert_from(h.attempt_snapshot, 'UTF8')::jsonb) AS attempts
    FROM horsies_task_history AS h
    CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number) AS now_at
    WHERE %(since)s::timestamptz IS NULL OR h.retention_anchor_at >= %(since)s::timestamptz - interval '1 hour'
) AS counted
WHERE
    counted.attempts > 0
    AND counted.written_by >= %(from_transaction)s::bigint AND counted.written_by < %(to_transaction)s::bigint
GROUP BY counted.written_by
ORDER BY counted.written_by
LIMIT %(limit)s
