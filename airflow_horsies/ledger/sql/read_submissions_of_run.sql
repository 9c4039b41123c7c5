-- What each task instance of a DAG run submitted last, position by position.
SELECT DISTINCT ON (task_id, map_index, position)
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
    horsies_task_id::text AS horsies_task_id, task_name, queue_name, good_until, submitted_at
FROM airflow_horsies.submissions
WHERE namespace = %(namespace)s AND dag_id = %(dag_id)s AND run_id = %(run_id)s
ORDER BY task_id, map_index, position, life DESC, round DESC
LIMIT %(limit)s
