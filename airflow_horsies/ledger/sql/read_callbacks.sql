SELECT
    id::text AS id, number, outcome, expires_at, heartbeats,
    extract(EPOCH FROM expires_at - clock_timestamp())::double precision AS seconds_left,
    CASE WHEN %(whole)s::boolean THEN body END AS body
FROM airflow_horsies.callbacks
WHERE id = ANY(%(ids)s::uuid[])
