-- An attempt that went back to the queue starts again; its lines are kept.
INSERT INTO airflow_horsies.attempts AS known (horsies_task_id, attempt, worker_id, hostname, pid, started_at)
VALUES (%(horsies_task_id)s::uuid, %(attempt)s, %(worker_id)s, %(hostname)s, %(pid)s, %(started_at)s)
ON CONFLICT (horsies_task_id, attempt) DO UPDATE SET
    worker_id = excluded.worker_id, hostname = excluded.hostname, pid = excluded.pid,
    started_at = excluded.started_at, finished_at = NULL, outcome = NULL, error_code = NULL, error_message = NULL,
    metrics = NULL
RETURNING (
    SELECT coalesce(max(line_number), 0)
    FROM airflow_horsies.logs AS written
    WHERE written.horsies_task_id = known.horsies_task_id AND written.attempt = known.attempt
) AS lines
