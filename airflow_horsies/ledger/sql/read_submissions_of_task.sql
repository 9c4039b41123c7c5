SELECT
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number,
    horsies_task_id::text AS horsies_task_id, task_name, queue_name, good_until, submitted_at
FROM airflow_horsies.submissions
WHERE horsies_task_id = %(horsies_task_id)s::uuid
ORDER BY submitted_at
