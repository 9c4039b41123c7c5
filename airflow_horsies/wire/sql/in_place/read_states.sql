SELECT id::text AS id, status
FROM horsies_tasks
WHERE id = ANY(%(ids)s::text[])
