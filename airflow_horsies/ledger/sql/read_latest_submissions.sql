SELECT DISTINCT ON (position)
    position, life, round, horsies_task_id::text AS horsies_task_id, base_url, run_started_at
FROM airflow_horsies.submissions
WHERE
    namespace = %(namespace)s
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
ORDER BY position, life DESC, round DESC
