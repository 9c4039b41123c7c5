WITH ended AS (
    UPDATE airflow_horsies.attempts
    SET
        finished_at = %(finished_at)s::timestamptz, outcome = %(outcome)s, error_code = %(error_code)s,
        error_message = %(error_message)s, metrics = %(metrics)s
    WHERE horsies_task_id = %(horsies_task_id)s::uuid AND attempt = %(attempt)s
)
DELETE FROM airflow_horsies.progress WHERE horsies_task_id = %(horsies_task_id)s::uuid
