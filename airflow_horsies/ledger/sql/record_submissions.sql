INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, place, life, round, try_number, run_key, run_started_at,
    clear_number, max_tries, horsies_task_id, base_url, task_name, queue_name, good_until, work, occurrence,
    taken_up, key_digest, kind
)
SELECT
    %(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, new.position, new.place, %(life)s, new.round,
    %(try_number)s, %(run_key)s, %(run_started_at)s::timestamptz, %(clear_number)s::integer, %(max_tries)s::integer,
    new.horsies_task_id, %(base_url)s, new.task_name, new.queue_name, new.good_until, new.work, new.occurrence,
    new.taken_up, new.key_digest, coalesce(new.kind, 'TASK')
FROM json_to_recordset(%(rounds)s::json) AS new (
    position integer, place integer, round integer, horsies_task_id uuid, task_name text, queue_name text,
    good_until timestamptz, work bytea, occurrence integer, taken_up boolean, key_digest bytea, kind text
)
