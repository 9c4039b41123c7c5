-- The next round of the task hands out the address from now on.
UPDATE airflow_horsies.callbacks
SET horsies_task_id = %(horsies_task_id)s::uuid
WHERE id = %(id)s::uuid AND horsies_task_id <> %(horsies_task_id)s::uuid
