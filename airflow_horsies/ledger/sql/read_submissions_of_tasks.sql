-- The submissions of horsies tasks, and whether they are still the latest.
SELECT
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
    horsies_task_id::text AS horsies_task_id, base_url, task_name, queue_name, good_until, submitted_at, is_latest
FROM airflow_horsies.known_submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
ORDER BY submitted_at DESC
