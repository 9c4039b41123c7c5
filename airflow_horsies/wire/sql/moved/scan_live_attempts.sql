-- A slice of the attempts of live tasks for one of several readers, by task.
SELECT
    a.task_id, t.task_name::text AS task_name, t.queue_name::text AS queue, a.attempt, a.outcome::text AS outcome,
    a.will_retry, a.started_at, a.finished_at, a.error_code, a.error_message, a.failed_reason,
    a.worker_id::text AS worker_id, a.worker_hostname::text AS hostname, a.worker_pid AS pid,
    a.worker_process_name::text AS process_name
FROM horsies_task_attempts AS a
INNER JOIN horsies_tasks AS t ON t.id = a.task_id
WHERE
    (%(since)s::timestamptz IS NULL OR a.finished_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR a.finished_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (t.enqueued_at, t.id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR t.enqueued_at IS NULL
        OR (t.enqueued_at, t.id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
