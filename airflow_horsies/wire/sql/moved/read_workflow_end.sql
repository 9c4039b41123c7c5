SELECT w.id::text AS id, w.name, w.status, w.definition_key, w.result, w.error
FROM horsies_workflows AS w
WHERE w.id = %(id)s::uuid
