SELECT n.id::text AS id
FROM horsies_workflow_tasks AS n
WHERE n.workflow_id = %(id)s::uuid AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
FOR UPDATE
