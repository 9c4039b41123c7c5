WITH gone AS (SELECT unnest(%(ids)s::uuid[]) AS id),
attempts AS (DELETE FROM airflow_horsies.attempts USING gone WHERE horsies_task_id = gone.id),
logs AS (DELETE FROM airflow_horsies.logs USING gone WHERE horsies_task_id = gone.id),
progress AS (DELETE FROM airflow_horsies.progress USING gone WHERE horsies_task_id = gone.id),
signals AS (DELETE FROM airflow_horsies.signals USING gone WHERE horsies_task_id = gone.id),
submissions AS (
    DELETE FROM airflow_horsies.submissions USING gone WHERE horsies_task_id = gone.id RETURNING 1
)
SELECT count(*) AS pruned FROM submissions
