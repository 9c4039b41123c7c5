SELECT EXISTS (
    SELECT FROM airflow_horsies.messages
    WHERE target = ANY(%(targets)s::uuid[]) AND name = %(name)s AND consumed_by IS NULL
) AS is_there
