-- The next lines that one item of a chunk wrote.
SELECT attempt, line_number, logged_at, level, line, item
FROM airflow_horsies.logs
WHERE
    horsies_task_id = %(horsies_task_id)s::uuid
    AND item = %(item)s
    AND (attempt, line_number) > (%(attempt)s, %(line_number)s)
ORDER BY attempt, line_number
LIMIT %(limit)s
