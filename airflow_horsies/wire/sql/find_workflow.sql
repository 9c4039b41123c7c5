SELECT status, name
FROM horsies_workflows
WHERE id = %(id)s
