-- In this generation not every transition into a terminal state has its own time, but all of them set updated_at.
-- Arguments and results can be large and are read only with the whole task; messages are truncated.
SELECT
    t.id::text AS id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at, t.good_until,
    t.claimed_at, t.started_at,
    CASE
        WHEN t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
            THEN coalesce(t.completed_at, t.failed_at, t.updated_at)
    END AS finished_at,
    t.next_retry_at, t.retry_count, t.max_retries, t.claimed_by_worker_id AS worker_id, t.worker_hostname,
    t.worker_pid, t.error_code, left(t.failed_reason, %(message_chars)s::integer) AS failed_reason, t.is_workflow_task,
    CASE WHEN %(whole)s::boolean THEN t.kwargs END AS kwargs, NULL::text AS rerun_input,
    CASE WHEN %(whole)s::boolean THEN t.result END AS result,
    (
        SELECT json_agg(
            json_build_array(
                a.attempt, a.outcome, a.will_retry,
                floor(extract(epoch FROM a.started_at) * 1000000)::bigint,
                floor(extract(epoch FROM a.finished_at) * 1000000)::bigint,
                a.error_code, left(a.error_message, %(message_chars)s::integer),
                left(a.failed_reason, %(message_chars)s::integer), a.worker_id, a.worker_hostname,
                a.worker_pid, a.worker_process_name
            )
            ORDER BY a.attempt
        )::text
        FROM horsies_task_attempts AS a
        WHERE a.task_id = t.id
    ) AS attempts
FROM horsies_tasks AS t
WHERE t.id = ANY(%(ids)s::text[])
