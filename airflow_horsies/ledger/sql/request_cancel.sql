-- Carried out later. If a worker of ours starts the task first, the signal stops it.
WITH requested AS (
    INSERT INTO airflow_horsies.cancel_requests (horsies_task_id)
    SELECT unnest(%(ids)s::uuid[])
    ON CONFLICT DO NOTHING
    RETURNING horsies_task_id
)
INSERT INTO airflow_horsies.signals (horsies_task_id, signal)
SELECT horsies_task_id, 'CANCEL' FROM requested
