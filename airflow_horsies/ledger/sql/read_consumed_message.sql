-- What an earlier attempt of the task has consumed.
SELECT payload
FROM airflow_horsies.messages
WHERE consumed_by = %(horsies_task_id)s::uuid AND name = %(name)s AND occurrence = %(occurrence)s
