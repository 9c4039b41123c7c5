SELECT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.cancel_requests
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
