SELECT horsies_task_id::text AS horsies_task_id, size, places
FROM airflow_horsies.chunks
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
