-- The newest callbacks of a task instance of this deployment. Answers as payloads in read_signals.
SELECT
    life, number, outcome, created_at, expires_at, heartbeats, heartbeat_at, completed_at, answered_from,
    CASE WHEN octet_length(body) <= %(payload_bytes)s::integer THEN body END AS body,
    coalesce(octet_length(body) > %(payload_bytes)s::integer, FALSE) AS is_body_cut,
    outcome IS NULL AND expires_at <= clock_timestamp() AS is_over
FROM airflow_horsies.callbacks
WHERE
    namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR base_url IN (%(base_url)s::text, ''))
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
ORDER BY life DESC, number DESC
LIMIT %(limit)s
