-- Newest first by the time of sending or of the last retry; the id breaks ties, so that paging skips nothing.
-- The messages of attempts are omitted, because those of many tasks would be most of the data.
-- Both sides are limited to a page before the merge, so that both can use their index on enqueued_at.
(
    SELECT
        t.id::text AS id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at,
        t.good_until, t.claimed_at, t.started_at, NULL::timestamptz AS finished_at,
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
            OR (t.enqueued_at, t.id) < (%(before_at)s::timestamptz, %(before_id)s::uuid)
        )
    ORDER BY t.enqueued_at DESC, t.id DESC
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT
        h.task_id::text, h.task_name, h.queue_name, h.priority, h.status, h.sent_at, h.enqueued_at,
        h.good_until, h.claimed_at, h.started_at, h.terminal_at,
        NULL, h.retry_count, h.max_retries, h.last_claimed_worker_id, h.last_worker_hostname,
        h.last_worker_pid, h.error_code, left(h.final_failed_reason, 5000), h.is_workflow_task,
        NULL, NULL, NULL,
        CASE
            WHEN NOT %(with_attempts)s::boolean THEN NULL
            WHEN octet_length(h.attempt_snapshot) <= 2000 THEN convert_from(h.attempt_snapshot, 'UTF8')
            ELSE (
                -- All fields at once: an operator per field would parse the whole text each time.
                SELECT json_agg(
                    (
                        SELECT json_agg(
                            CASE WHEN field.number NOT IN (7, 8) THEN field.value END
                            ORDER BY field.number
                        )
                        FROM json_array_elements(a.fields) WITH ORDINALITY AS field (value, number)
                    )
                    ORDER BY a.number
                )::text
                -- Postgres text cannot contain NUL or half a surrogate pair.
                FROM convert_from(h.attempt_snapshot, 'UTF8') AS stored (text)
                CROSS JOIN LATERAL json_array_elements((
                    CASE
                        WHEN strpos(stored.text, '\u') = 0 THEN stored.text
                        ELSE regexp_replace(stored.text, '\\u(0000|[dD][89a-fA-F]..)', '\\ufffd', 'g')
                    END
                )::json) WITH ORDINALITY AS a (fields, number)
            )
        END
    FROM horsies_task_history AS h
    WHERE
        (%(states)s::text[] IS NULL OR h.status = ANY(%(states)s::text[]))
        AND (%(queue)s::text IS NULL OR h.queue_name = %(queue)s::text)
        AND (%(task_name)s::text IS NULL OR h.task_name = %(task_name)s::text)
        AND (%(error_code)s::text IS NULL OR h.error_code = %(error_code)s::text)
        AND (
            %(before_at)s::timestamptz IS NULL
            OR (h.enqueued_at, h.task_id) < (%(before_at)s::timestamptz, %(before_id)s::uuid)
        )
    ORDER BY h.enqueued_at DESC, h.task_id DESC
    LIMIT %(limit)s
)
ORDER BY enqueued_at DESC, id DESC
LIMIT %(limit)s
