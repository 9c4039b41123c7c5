-- Which of these ids are those of submitted workflows.
SELECT DISTINCT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[]) AND kind = 'WORKFLOW'
