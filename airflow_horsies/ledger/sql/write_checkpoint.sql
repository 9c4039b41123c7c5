-- Call it only while the transaction holds the claim of the task.
INSERT INTO airflow_horsies.checkpoints AS known (horsies_task_id, item, attempt, value)
VALUES (%(horsies_task_id)s::uuid, %(item)s, %(attempt)s, %(value)s)
ON CONFLICT (horsies_task_id, item) DO UPDATE SET
    attempt = excluded.attempt, value = excluded.value, saved_at = clock_timestamp()
