-- A slice of the attempts of ended tasks for one of several readers, by task, because the attempts of a task are one
-- value. Horsies writes it with to_jsonb, so it can be parsed as jsonb. A task ends with its last attempt; the extra
-- day allows for the clocks of workers, which set the end of some attempts.
SELECT
    h.task_id, h.task_name::text AS task_name, h.queue_name::text AS queue, (a.fields ->> 0)::integer AS attempt,
    a.fields ->> 1 AS outcome, (a.fields ->> 2)::boolean AS will_retry,
    timestamptz 'epoch' + (a.fields ->> 3)::bigint * interval '1 microsecond' AS started_at,
    timestamptz 'epoch' + (a.fields ->> 4)::bigint * interval '1 microsecond' AS finished_at,
    a.fields ->> 5 AS error_code, a.fields ->> 6 AS error_message, a.fields ->> 7 AS failed_reason,
    a.fields ->> 8 AS worker_id, a.fields ->> 9 AS hostname, (a.fields ->> 10)::integer AS pid,
    a.fields ->> 11 AS process_name
FROM horsies_task_history AS h
CROSS JOIN LATERAL jsonb_array_elements(convert_from(h.attempt_snapshot, 'UTF8')::jsonb) AS a (fields)
WHERE
    (
        %(since)s::timestamptz IS NULL
        OR (
            h.retention_anchor_at >= %(since)s::timestamptz - interval '1 day'
            AND timestamptz 'epoch' + (a.fields ->> 4)::bigint * interval '1 microsecond' >= %(since)s::timestamptz
        )
    )
    AND (
        %(until)s::timestamptz IS NULL
        OR timestamptz 'epoch' + (a.fields ->> 4)::bigint * interval '1 microsecond' < %(until)s::timestamptz
    )
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (h.enqueued_at, h.task_id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR h.enqueued_at IS NULL
        OR (h.enqueued_at, h.task_id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
