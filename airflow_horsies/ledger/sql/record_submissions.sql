INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number, run_started_at,
    horsies_task_id, base_url, task_name, queue_name, good_until
)
SELECT
    %(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, new.position, %(life)s, new.round,
    %(try_number)s, %(run_started_at)s::timestamptz, new.horsies_task_id, %(base_url)s, new.task_name, new.queue_name, new.good_until
FROM unnest(
    %(positions)s::integer[], %(rounds)s::integer[], %(horsies_task_ids)s::uuid[], %(task_names)s::text[],
    %(queue_names)s::text[], %(good_untils)s::timestamptz[]
) AS new (position, round, horsies_task_id, task_name, queue_name, good_until)
