UPDATE airflow_horsies.callbacks
SET
    heartbeat_at = clock_timestamp(),
    heartbeats = heartbeats + 1,
    expires_at = greatest(
        expires_at, least(last_expires_at, clock_timestamp() + make_interval(secs => extended_by_seconds))
    )
WHERE id = %(id)s::uuid AND completed_at IS NULL
RETURNING expires_at
