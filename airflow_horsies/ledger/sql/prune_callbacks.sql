-- Their tokens are removed with them.
DELETE FROM airflow_horsies.callbacks
WHERE id IN (
    SELECT id
    FROM airflow_horsies.callbacks
    WHERE
        expires_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
        AND coalesce(completed_at, expires_at)
        < now() - make_interval(secs => %(older_than_seconds)s::double precision)
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
