-- Which of these tasks are recorded, in any life.
SELECT DISTINCT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
