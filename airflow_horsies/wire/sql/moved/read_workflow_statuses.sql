SELECT id::text AS id, status
FROM horsies_workflows
WHERE id = ANY(%(ids)s::uuid[])
