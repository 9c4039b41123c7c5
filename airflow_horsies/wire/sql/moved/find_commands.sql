-- One statement, so one snapshot: a task that moves to the history meanwhile is found exactly once.
SELECT id::text AS id, status, command_fingerprint
FROM horsies_tasks
WHERE id = ANY(%(ids)s::uuid[])
UNION ALL
SELECT task_id::text, status, command_fingerprint
FROM horsies_task_history
WHERE task_id = ANY(%(ids)s::uuid[])
