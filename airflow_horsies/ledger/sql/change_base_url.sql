UPDATE airflow_horsies.submissions
SET base_url = %(new)s
WHERE namespace = %(namespace)s AND base_url = %(old)s
RETURNING horsies_task_id::text AS horsies_task_id
