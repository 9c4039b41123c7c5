-- Newest first by the time of sending or of the last retry; the id breaks ties, so that paging skips nothing.
-- The messages of attempts are omitted, because those of many tasks would be most of the data.
SELECT
    t.id::text AS id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at, t.good_until,
    t.claimed_at, t.started_at,
    CASE
        WHEN t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
            THEN coalesce(t.completed_at, t.failed_at, t.updated_at)
    END AS finished_at,
    t.next_retry_at, t.retry_count, t.max_retries, t.claimed_by_worker_id AS worker_id, t.worker_hostname,
    t.worker_pid, t.error_code, left(t.failed_reason, 5000) AS failed_reason, t.is_workflow_task,
    NULL::text AS kwargs, NULL::text AS rerun_input, NULL::text AS result,
    CASE WHEN %(with_attempts)s::boolean THEN (
        SELECT json_agg(
            json_build_array(
                a.attempt, a.outcome, a.will_retry,
                floor(extract(epoch FROM a.started_at) * 1000000)::bigint,
                floor(extract(epoch FROM a.finished_at) * 1000000)::bigint,
                a.error_code, NULL, NULL, a.worker_id, a.worker_hostname,
                a.worker_pid, a.worker_process_name
            )
            ORDER BY a.attempt
        )::text
        FROM horsies_task_attempts AS a
        WHERE a.task_id = t.id
    ) END AS attempts
FROM horsies_tasks AS t
WHERE
    (%(states)s::text[] IS NULL OR t.status = ANY(%(states)s::text[]))
    AND (%(queue)s::text IS NULL OR t.queue_name = %(queue)s::text)
    AND (%(task_name)s::text IS NULL OR t.task_name = %(task_name)s::text)
    AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s::text)
    AND (
        %(before_at)s::timestamptz IS NULL
        OR (t.enqueued_at, t.id) < (%(before_at)s::timestamptz, %(before_id)s::text)
    )
ORDER BY t.enqueued_at DESC, t.id DESC
LIMIT %(limit)s
