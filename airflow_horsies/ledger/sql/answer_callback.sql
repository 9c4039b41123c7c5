UPDATE airflow_horsies.callbacks
SET
    outcome = %(outcome)s, completed_at = clock_timestamp(), body = %(body)s, body_digest = %(body_digest)s::bytea,
    answered_from = %(answered_from)s
WHERE id = %(id)s::uuid AND completed_at IS NULL
RETURNING pg_notify('airflow_horsies_callback', id::text)::text AS notified
