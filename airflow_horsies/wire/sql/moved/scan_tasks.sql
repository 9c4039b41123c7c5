-- A slice of all tasks for one of several readers. The reader selects columns from it; the others are not fetched.
-- The arguments of a finished task are kept only on request of the sender, as the input of a rerun.
SELECT
    t.id AS task_id, t.task_name::text AS task_name, t.queue_name::text AS queue, t.priority,
    t.status::text AS state, t.sent_at, t.enqueued_at, t.good_until, t.claimed_at, t.started_at,
    NULL::timestamptz AS finished_at, t.next_retry_at, t.retry_count, t.max_retries,
    t.claimed_by_worker_id::text AS worker_id, t.worker_hostname::text AS hostname, t.worker_pid AS pid,
    t.worker_process_name::text AS process_name, t.error_code, t.failed_reason, t.is_workflow_task,
    t.args, t.kwargs, t.result
FROM horsies_tasks AS t
WHERE
    (%(since)s::timestamptz IS NULL OR t.enqueued_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR t.enqueued_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (t.enqueued_at, t.id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR t.enqueued_at IS NULL
        OR (t.enqueued_at, t.id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
UNION ALL
SELECT
    h.task_id, h.task_name::text, h.queue_name::text, h.priority, h.status, h.sent_at, h.enqueued_at,
    h.good_until, h.claimed_at, h.started_at, h.terminal_at, NULL, h.retry_count, h.max_retries,
    h.last_claimed_worker_id::text, h.last_worker_hostname::text, h.last_worker_pid,
    h.last_worker_process_name::text, h.error_code, h.final_failed_reason, h.is_workflow_task,
    (convert_from(h.rerun_input_inline, 'UTF8')::json -> 'args')::text,
    (convert_from(h.rerun_input_inline, 'UTF8')::json -> 'kwargs')::text,
    convert_from(h.result_payload, 'UTF8')
FROM horsies_task_history AS h
WHERE
    (%(since)s::timestamptz IS NULL OR h.enqueued_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR h.enqueued_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (h.enqueued_at, h.task_id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR h.enqueued_at IS NULL
        OR (h.enqueued_at, h.task_id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
