-- The running task of a claim, before it parks. The lock keeps the claim until the end of the transaction.
SELECT retry_count, max_retries, task_options, good_until, is_workflow_task, queue_name, clock_timestamp() AS db_now
FROM horsies_tasks
WHERE
    id = %(id)s AND status = 'RUNNING' AND claimed_by_worker_id = %(worker_id)s
    AND (%(claimed_at)s::timestamptz IS NULL OR claimed_at = %(claimed_at)s::timestamptz)
FOR UPDATE
