-- A slice of all attempts for one of several readers, cut by the task, as those of a finished one are one value.
-- Upstream writes that value with to_jsonb, so it can be taken apart as jsonb. A task ends when its last attempt does:
-- the day makes up for the clocks of workers, of which some date the end of an attempt.
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
UNION ALL
SELECT
    h.task_id, h.task_name::text, h.queue_name::text, (a.fields ->> 0)::integer, a.fields ->> 1,
    (a.fields ->> 2)::boolean,
    timestamptz 'epoch' + (a.fields ->> 3)::bigint * interval '1 microsecond',
    timestamptz 'epoch' + (a.fields ->> 4)::bigint * interval '1 microsecond',
    a.fields ->> 5, a.fields ->> 6, a.fields ->> 7, a.fields ->> 8, a.fields ->> 9, (a.fields ->> 10)::integer,
    a.fields ->> 11
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
