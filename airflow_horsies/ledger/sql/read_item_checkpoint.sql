SELECT value
FROM airflow_horsies.checkpoints
WHERE horsies_task_id = %(horsies_task_id)s::uuid AND item = %(item)s
