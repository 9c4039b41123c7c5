-- A slice of all submissions for one of several readers.
SELECT
    s.namespace, s.dag_id, s.run_id, s.task_id, s.map_index, s.position, s.life, s.round, s.try_number,
    s.run_started_at, s.horsies_task_id, s.base_url, s.task_name, s.queue_name AS queue, s.good_until, s.submitted_at
FROM airflow_horsies.submissions AS s
WHERE
    (%(since)s::timestamptz IS NULL OR s.submitted_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR s.submitted_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (s.submitted_at, s.horsies_task_id) >= (%(from_at)s::timestamptz, %(from_key)s::uuid)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR s.submitted_at IS NULL
        OR (s.submitted_at, s.horsies_task_id) < (%(to_at)s::timestamptz, %(to_key)s::uuid)
    )
