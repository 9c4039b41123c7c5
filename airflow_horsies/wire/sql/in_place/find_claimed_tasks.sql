-- The tasks of these claims, whether they still run or have ended; a task that someone else has since claimed is omitted.
-- In this generation a cancel removes the claim, so cancelled tasks are omitted too.
SELECT t.id::text AS id, t.status, t.retry_count, t.good_until
FROM unnest(%(ids)s::text[], %(worker_ids)s::text[], %(claimed_ats)s::timestamptz[]) AS claim (id, worker_id, claimed_at)
JOIN horsies_tasks AS t ON t.id = claim.id
WHERE
    t.status NOT IN ('PENDING', 'CLAIMED') AND t.claimed_by_worker_id = claim.worker_id
    AND (claim.claimed_at IS NULL OR t.claimed_at = claim.claimed_at)
