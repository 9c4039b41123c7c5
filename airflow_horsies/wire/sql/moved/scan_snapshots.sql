-- A slice of ended tasks for one of several readers, with their attempts as horsies wrote them, without the outer
-- brackets. Readers parse them, because Postgres takes several times as long, and also filter by the times of attempts;
-- the extra day allows for the clocks of workers, which set the end of some attempts.
SELECT
    convert_from(substr(h.attempt_snapshot, 3, octet_length(h.attempt_snapshot) - 4), 'UTF8') AS attempts,
    h.task_id, to_json(h.task_name::text) AS task_name, to_json(h.queue_name::text) AS queue
FROM horsies_task_history AS h
WHERE
    octet_length(h.attempt_snapshot) > 4
    AND (%(since)s::timestamptz IS NULL OR h.retention_anchor_at >= %(since)s::timestamptz - interval '1 day')
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (h.enqueued_at, h.task_id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR h.enqueued_at IS NULL
        OR (h.enqueued_at, h.task_id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
