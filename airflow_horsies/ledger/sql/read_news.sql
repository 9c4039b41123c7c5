-- For all followers in one statement: a limited number of the next lines of each task, and its progress. Where the
-- lines have no item, as in tables of an older version, the name means that of the constant.
SELECT
    seen.horsies_task_id::text AS horsies_task_id, line.attempt, line.line_number, line.logged_at, line.level,
    line.line, line.item, progress.attempt AS progress_attempt, progress.done, progress.total, progress.stage,
    progress.updated_at
FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(line_numbers)s::integer[])
    AS seen (horsies_task_id, attempt, line_number)
CROSS JOIN (SELECT NULL::integer AS item) AS older
LEFT JOIN airflow_horsies.progress AS progress ON progress.horsies_task_id = seen.horsies_task_id
LEFT JOIN LATERAL (
    SELECT written.attempt, written.line_number, written.logged_at, written.level, written.line, item
    FROM airflow_horsies.logs AS written
    WHERE
        written.horsies_task_id = seen.horsies_task_id
        AND (written.attempt, written.line_number) > (seen.attempt, seen.line_number)
    ORDER BY written.attempt, written.line_number
    LIMIT %(limit)s
) AS line ON true
WHERE line.attempt IS NOT NULL OR progress.attempt IS NOT NULL
ORDER BY seen.horsies_task_id, line.attempt, line.line_number
