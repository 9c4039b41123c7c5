-- As read_running_task. The lock keeps the claim until the end of the transaction: whoever ends the task or gives it to
-- another worker waits, and then sees what the transaction has written.
SELECT retry_count, good_until
FROM horsies_tasks
WHERE
    id = %(id)s AND status = 'RUNNING' AND claimed_by_worker_id = %(worker_id)s
    AND (%(claimed_at)s::timestamptz IS NULL OR claimed_at = %(claimed_at)s::timestamptz)
FOR SHARE
