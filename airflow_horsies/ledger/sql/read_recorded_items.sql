SELECT number, outcome
FROM airflow_horsies.items
WHERE horsies_task_id = %(horsies_task_id)s::uuid
ORDER BY number
