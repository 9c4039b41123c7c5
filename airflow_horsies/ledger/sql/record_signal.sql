INSERT INTO airflow_horsies.signals (horsies_task_id, signal) VALUES (%(horsies_task_id)s::uuid, %(signal)s)
