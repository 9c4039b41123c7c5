INSERT INTO airflow_horsies.callbacks (
    id, namespace, dag_id, run_id, task_id, map_index, life, number, base_url, horsies_task_id, expires_at,
    extended_by_seconds, last_expires_at
)
VALUES (
    %(id)s::uuid, %(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, %(life)s, %(number)s, %(base_url)s,
    %(horsies_task_id)s::uuid, now() + make_interval(secs => %(expires_after_seconds)s::double precision),
    %(expires_after_seconds)s::double precision,
    now() + make_interval(secs => %(max_duration_seconds)s::double precision)
)
RETURNING
    id::text AS id, number, outcome, expires_at, heartbeats,
    extract(EPOCH FROM expires_at - clock_timestamp())::double precision AS seconds_left, body
