-- A slice of all attempts for one of several readers, by the end of the attempt, which is indexed.
SELECT
    a.task_id, t.task_name, t.queue_name AS queue, a.attempt, a.outcome, a.will_retry,
    a.started_at, a.finished_at, a.error_code, a.error_message, a.failed_reason, a.worker_id,
    a.worker_hostname AS hostname, a.worker_pid AS pid, a.worker_process_name AS process_name
FROM horsies_task_attempts AS a
LEFT JOIN horsies_tasks AS t ON t.id = a.task_id
WHERE
    (%(since)s::timestamptz IS NULL OR a.finished_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR a.finished_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (a.finished_at, a.task_id) >= (%(from_at)s::timestamptz, %(from_key)s::text)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR a.finished_at IS NULL
        OR (a.finished_at, a.task_id) < (%(to_at)s::timestamptz, %(to_key)s::text)
    )
