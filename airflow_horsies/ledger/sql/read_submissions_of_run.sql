-- The last submissions of the task instances of a DAG run.
SELECT
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
    horsies_task_id::text AS horsies_task_id, base_url, task_name, queue_name, good_until, submitted_at, is_latest
FROM airflow_horsies.known_submissions
WHERE
    namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR base_url IN (%(base_url)s::text, ''))
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND is_latest
ORDER BY task_id, map_index, position
LIMIT %(limit)s
