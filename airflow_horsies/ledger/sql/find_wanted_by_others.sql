-- Which of these tasks another task instance still wants: they share it by an idempotency key.
SELECT DISTINCT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.known_submissions
WHERE
    horsies_task_id = ANY(%(ids)s::uuid[])
    AND released_at IS NULL
    AND is_latest
    AND (namespace, dag_id, run_id, task_id, map_index)
    <> (%(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s::integer)
