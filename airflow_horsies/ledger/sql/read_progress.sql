SELECT horsies_task_id::text AS horsies_task_id, attempt, done, total, stage, updated_at
FROM airflow_horsies.progress
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
