-- Attempts from start to end, of which there was nothing to report in between. A later run of an attempt is kept.
WITH recorded AS (
    INSERT INTO airflow_horsies.attempts AS known (
        horsies_task_id, attempt, worker_id, hostname, pid, started_at, finished_at, outcome
    )
    SELECT
        ended.horsies_task_id, ended.attempt, ended.worker_id, %(hostname)s, %(pid)s, ended.started_at,
        ended.finished_at, 'COMPLETED'
    FROM unnest(
        %(ids)s::uuid[], %(attempts)s::integer[], %(worker_ids)s::text[], %(started_ats)s::timestamptz[],
        %(finished_ats)s::timestamptz[]
    ) AS ended (horsies_task_id, attempt, worker_id, started_at, finished_at)
    ON CONFLICT (horsies_task_id, attempt) DO UPDATE SET
        worker_id = excluded.worker_id, hostname = excluded.hostname, pid = excluded.pid,
        started_at = excluded.started_at, finished_at = excluded.finished_at, outcome = excluded.outcome,
        error_code = NULL, error_message = NULL, metrics = NULL
    WHERE known.started_at <= excluded.started_at
)

DELETE FROM airflow_horsies.progress WHERE horsies_task_id = ANY(%(ids)s::uuid[])
