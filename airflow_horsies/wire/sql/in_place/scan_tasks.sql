-- A slice of all tasks for one of several readers. The reader selects columns from it; the others are not fetched.
SELECT
    t.id AS task_id, t.task_name, t.queue_name AS queue, t.priority, t.status AS state,
    t.sent_at, t.enqueued_at, t.good_until, t.claimed_at, t.started_at,
    CASE
        WHEN t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
            THEN coalesce(t.completed_at, t.failed_at, t.updated_at)
    END AS finished_at,
    t.next_retry_at, t.retry_count, t.max_retries, t.claimed_by_worker_id AS worker_id,
    t.worker_hostname AS hostname, t.worker_pid AS pid, t.worker_process_name AS process_name,
    t.error_code, t.failed_reason, t.is_workflow_task, t.args, t.kwargs, t.result
FROM horsies_tasks AS t
WHERE
    (%(since)s::timestamptz IS NULL OR t.enqueued_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR t.enqueued_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (t.enqueued_at, t.id) >= (%(from_at)s::timestamptz, %(from_key)s::text)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR t.enqueued_at IS NULL
        OR (t.enqueued_at, t.id) < (%(to_at)s::timestamptz, %(to_key)s::text)
    )
