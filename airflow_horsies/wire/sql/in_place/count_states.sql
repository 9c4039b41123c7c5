SELECT status, count(*) AS count
FROM horsies_tasks
WHERE id = ANY(%(ids)s::text[])
GROUP BY status
