-- The task as the child that runs it knows it: no row where the claim is no longer its own.
SELECT retry_count, good_until
FROM horsies_tasks
WHERE
    id = %(id)s AND status = 'RUNNING' AND claimed_by_worker_id = %(worker_id)s
    AND (%(claimed_at)s::timestamptz IS NULL OR claimed_at = %(claimed_at)s::timestamptz)
