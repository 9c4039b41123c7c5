SELECT
    queue_name,
    count(*) FILTER (WHERE status = 'PENDING' AND is_due) AS ready,
    count(*) FILTER (WHERE status = 'PENDING' AND NOT is_due) AS delayed,
    count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
    count(*) FILTER (WHERE status = 'RUNNING') AS running,
    min(enqueued_at) FILTER (WHERE status = 'PENDING' AND is_due) AS oldest_ready_at
FROM (
    SELECT
        queue_name,
        status,
        enqueued_at,
        enqueued_at <= now() AND (next_retry_at IS NULL OR next_retry_at <= now()) AS is_due
    FROM horsies_tasks
    WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')
) AS live
GROUP BY queue_name
ORDER BY queue_name
