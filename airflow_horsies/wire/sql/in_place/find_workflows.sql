-- Which of these workflows horsies keeps.
SELECT id::text AS id
FROM horsies_workflows
WHERE id = ANY(%(ids)s::text[])
