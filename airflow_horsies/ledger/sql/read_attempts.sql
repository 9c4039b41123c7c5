SELECT
    horsies_task_id::text AS horsies_task_id, attempt, worker_id, hostname, pid, started_at, finished_at, outcome,
    error_code, error_message, metrics
FROM airflow_horsies.attempts
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
ORDER BY horsies_task_id, attempt
