-- The work of these tasks, if it is recorded.
SELECT DISTINCT horsies_task_id::text AS horsies_task_id, work
FROM airflow_horsies.submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[]) AND work IS NOT NULL
