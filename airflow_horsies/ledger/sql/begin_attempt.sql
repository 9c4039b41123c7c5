-- An attempt that went back to the queue starts again; its lines are kept, and those of this run are numbered after them.
INSERT INTO airflow_horsies.attempts AS known (horsies_task_id, attempt, worker_id, hostname, pid, started_at)
VALUES (%(horsies_task_id)s::uuid, %(attempt)s, %(worker_id)s, %(hostname)s, %(pid)s, %(started_at)s)
ON CONFLICT (horsies_task_id, attempt) DO UPDATE SET
    worker_id = excluded.worker_id, hostname = excluded.hostname, pid = excluded.pid,
    started_at = excluded.started_at, finished_at = NULL, outcome = NULL, error_code = NULL, error_message = NULL,
    metrics = NULL
RETURNING (
    SELECT coalesce(max(written.line_number), 0)
    FROM airflow_horsies.logs AS written
    WHERE
        written.horsies_task_id = known.horsies_task_id AND written.attempt = known.attempt
        -- Where the answer to the first commit was lost, the lines of this run are there already. The row is read as it
        -- was before this statement.
        AND NOT (
            written.logged_at >= known.started_at AND EXISTS (
                SELECT FROM airflow_horsies.attempts AS before
                WHERE
                    before.horsies_task_id = known.horsies_task_id AND before.attempt = known.attempt
                    AND before.pid = known.pid AND before.started_at = known.started_at
            )
        )
) AS lines
