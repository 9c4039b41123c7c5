-- One statement, so one snapshot: a task that moves to the history meanwhile is counted exactly once.
SELECT found.status, count(*) AS count
FROM (
    SELECT status
    FROM horsies_tasks
    WHERE id = ANY(%(ids)s::uuid[])
    UNION ALL
    SELECT status
    FROM horsies_task_history
    WHERE task_id = ANY(%(ids)s::uuid[])
) AS found
GROUP BY found.status
