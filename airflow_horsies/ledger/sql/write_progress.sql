INSERT INTO airflow_horsies.progress (horsies_task_id, attempt, done, total, stage)
VALUES (%(horsies_task_id)s::uuid, %(attempt)s, %(done)s, %(total)s, %(stage)s)
ON CONFLICT (horsies_task_id) DO UPDATE SET
    attempt = excluded.attempt, done = excluded.done, total = excluded.total, stage = excluded.stage,
    updated_at = now()
