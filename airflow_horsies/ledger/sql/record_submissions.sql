INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number, run_started_at,
    horsies_task_id, base_url, task_name, queue_name, good_until
)
SELECT
    %(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, new.position, %(life)s, new.round,
    %(try_number)s, %(run_started_at)s::timestamptz, new.horsies_task_id, %(base_url)s, new.task_name, new.queue_name, new.good_until
FROM json_to_recordset(%(rounds)s::json) AS new (
    position integer, round integer, horsies_task_id uuid, task_name text, queue_name text, good_until timestamptz
)
