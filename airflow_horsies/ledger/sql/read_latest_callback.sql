-- The newest callback of a life. It is locked, so that an answer comes either before or after what follows.
SELECT
    callback.id::text AS id, callback.number, callback.outcome, callback.expires_at, callback.heartbeats,
    extract(EPOCH FROM callback.expires_at - clock_timestamp())::double precision AS seconds_left,
    NULL AS body
FROM airflow_horsies.callbacks AS callback
WHERE
    callback.namespace = %(namespace)s
    AND callback.dag_id = %(dag_id)s
    AND callback.run_id = %(run_id)s
    AND callback.task_id = %(task_id)s
    AND callback.map_index = %(map_index)s
    AND callback.life = %(life)s
ORDER BY callback.number DESC
LIMIT 1
FOR UPDATE
