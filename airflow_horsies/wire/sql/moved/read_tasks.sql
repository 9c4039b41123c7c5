-- One statement, so one snapshot: a task that moves to the history meanwhile is found exactly once.
-- Arguments and results can be large and are read only with the whole task; messages are truncated.
SELECT
    t.id::text AS id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at, t.good_until,
    t.claimed_at, t.started_at, NULL::timestamptz AS finished_at,
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
WHERE t.id = ANY(%(ids)s::uuid[])
UNION ALL
SELECT
    h.task_id::text, h.task_name, h.queue_name, h.priority, h.status, h.sent_at, h.enqueued_at, h.good_until,
    h.claimed_at, h.started_at, h.terminal_at,
    NULL, h.retry_count, h.max_retries, h.last_claimed_worker_id, h.last_worker_hostname,
    h.last_worker_pid, h.error_code, left(h.final_failed_reason, %(message_chars)s::integer), h.is_workflow_task,
    -- The arguments of a finished task are kept only on request of the sender.
    NULL, CASE WHEN %(whole)s::boolean THEN convert_from(h.rerun_input_inline, 'UTF8') END,
    CASE WHEN %(whole)s::boolean THEN convert_from(h.result_payload, 'UTF8') END,
    CASE
        WHEN octet_length(h.attempt_snapshot) <= %(message_chars)s::integer
            THEN convert_from(h.attempt_snapshot, 'UTF8')
        ELSE (
            -- All fields at once: an operator per field would parse the whole text each time.
            SELECT json_agg(
                (
                    SELECT json_agg(
                        CASE
                            WHEN field.number IN (7, 8)
                                THEN to_json(left(field.value #>> '{}', %(message_chars)s::integer))
                            ELSE field.value
                        END
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
WHERE h.task_id = ANY(%(ids)s::uuid[])
