SELECT count(*) AS waiting
FROM (
    SELECT FROM airflow_horsies.messages
    WHERE target = %(target)s::uuid AND consumed_by IS NULL
    LIMIT %(limit)s
) AS message
