-- Concurrent processes take different requests. Only those with the given ids, if there are any.
DELETE FROM airflow_horsies.cancel_requests
WHERE horsies_task_id IN (
    SELECT horsies_task_id FROM airflow_horsies.cancel_requests
    WHERE %(ids)s::uuid[] IS NULL OR horsies_task_id = ANY(%(ids)s::uuid[])
    ORDER BY requested_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
RETURNING horsies_task_id::text AS horsies_task_id
