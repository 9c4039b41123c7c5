-- What came after the last line each reader has seen; a bounded number of lines of each task.
SELECT
    seen.horsies_task_id::text AS horsies_task_id, line.attempt, line.line_number, line.logged_at, line.level,
    line.line
FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(line_numbers)s::integer[])
    AS seen (horsies_task_id, attempt, line_number)
CROSS JOIN LATERAL (
    SELECT written.attempt, written.line_number, written.logged_at, written.level, written.line
    FROM airflow_horsies.logs AS written
    WHERE
        written.horsies_task_id = seen.horsies_task_id
        AND (written.attempt, written.line_number) > (seen.attempt, seen.line_number)
    ORDER BY written.attempt, written.line_number
    LIMIT %(limit)s
) AS line
ORDER BY seen.horsies_task_id, line.attempt, line.line_number
