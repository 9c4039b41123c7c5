-- How long recent items of a task took. Bounded: of the last submissions, the last chunks of the task.
WITH recent AS (
    SELECT horsies_task_id, task_name, submitted_at
    FROM airflow_horsies.submissions
    ORDER BY submitted_at DESC
    LIMIT %(submissions)s
),
chosen AS (
    SELECT horsies_task_id
    FROM recent
    WHERE task_name = %(task_name)s
    ORDER BY submitted_at DESC
    LIMIT %(chunks)s
)
SELECT
    count(*) AS items,
    extract(epoch FROM avg(item.finished_at - item.started_at))::double precision AS seconds
FROM chosen
INNER JOIN airflow_horsies.items AS item USING (horsies_task_id)
WHERE item.started_at IS NOT NULL
