SELECT dropped
FROM airflow_horsies.chunks
WHERE horsies_task_id = %(horsies_task_id)s::uuid
