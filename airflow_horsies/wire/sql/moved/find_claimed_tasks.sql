-- The tasks of these claims, whether they still run or have ended; a task that someone else has since claimed is omitted.
-- One statement, so one snapshot: a task that moves to the history meanwhile is found exactly once.
WITH claim AS (
    SELECT claim.id, claim.worker_id, claim.claimed_at
    FROM unnest(
        %(ids)s::uuid[], %(worker_ids)s::text[], %(claimed_ats)s::timestamptz[]
    ) AS claim (id, worker_id, claimed_at)
)

SELECT t.id::text AS id, t.status, t.retry_count, t.good_until
FROM claim
JOIN horsies_tasks AS t ON t.id = claim.id
WHERE
    t.status = 'RUNNING' AND t.claimed_by_worker_id = claim.worker_id
    AND (claim.claimed_at IS NULL OR t.claimed_at = claim.claimed_at)
UNION ALL
SELECT h.task_id::text, h.status, h.retry_count, h.good_until
FROM claim
JOIN horsies_task_history AS h ON h.task_id = claim.id
WHERE
    h.last_claimed_worker_id = claim.worker_id
    AND (claim.claimed_at IS NULL OR h.claimed_at = claim.claimed_at)
    -- Reads the newest partitions only.
    AND h.retention_anchor_at > now() - INTERVAL '1 day'
