-- The task that a worker child runs; no row if the child no longer has the claim.
SELECT retry_count, good_until
FROM horsies_tasks
WHERE
    id = %(id)s AND status = 'RUNNING' AND claimed_by_worker_id = %(worker_id)s
    AND (%(claimed_at)s::timestamptz IS NULL OR claimed_at = %(claimed_at)s::timestamptz)
