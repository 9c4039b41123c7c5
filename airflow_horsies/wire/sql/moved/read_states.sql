-- One statement, so one snapshot: a task that moves to the history meanwhile is found exactly once.
SELECT id::text AS id, status
FROM horsies_tasks
WHERE id = ANY(%(ids)s::uuid[])
UNION ALL
SELECT task_id::text, status
FROM horsies_task_history
WHERE task_id = ANY(%(ids)s::uuid[])
