-- Which of these tasks stand in the ledger, in whatever life.
SELECT DISTINCT horsies_task_id::text AS horsies_task_id
FROM airflow_horsies.submissions
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
