-- The first attempt fixes the end of the wait; a later one keeps it.
INSERT INTO airflow_horsies.parkings AS known (horsies_task_id, name, occurrence, targets, attempt, due_at)
VALUES (
    %(horsies_task_id)s::uuid, %(name)s, %(occurrence)s, %(targets)s::uuid[], %(attempt)s,
    clock_timestamp() + make_interval(secs => %(timeout_seconds)s::double precision)
)
ON CONFLICT (horsies_task_id, name, occurrence) DO UPDATE SET
    attempt = excluded.attempt, parked_at = now()
RETURNING
    known.due_at, coalesce(known.due_at <= clock_timestamp(), FALSE) AS is_over,
    extract(EPOCH FROM known.due_at - clock_timestamp())::double precision AS seconds_left
