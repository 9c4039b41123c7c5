UPDATE horsies_workflow_tasks
SET status = 'SKIPPED'
WHERE workflow_id = %(id)s::text AND status IN ('PENDING', 'READY')
