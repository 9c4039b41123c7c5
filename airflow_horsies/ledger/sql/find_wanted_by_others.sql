-- Which of these tasks others need: another task instance that shares the task through an idempotency key, or a sender
-- without a record in our tables.
SELECT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.known_submissions
WHERE
    horsies_task_id = ANY(%(ids)s::uuid[])
    AND released_at IS NULL
    AND is_latest
    AND (namespace, dag_id, run_id, task_id, map_index)
    <> (%(namespace)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s::integer)
UNION
SELECT horsies_task_id::text
FROM airflow_horsies.submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
GROUP BY horsies_task_id
HAVING bool_and(taken_up)
