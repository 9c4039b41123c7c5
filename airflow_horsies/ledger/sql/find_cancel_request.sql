SELECT EXISTS (
    SELECT FROM airflow_horsies.signals
    WHERE horsies_task_id = %(horsies_task_id)s::uuid AND signal = 'CANCEL'
) AS requested
