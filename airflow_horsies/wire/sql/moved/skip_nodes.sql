UPDATE horsies_workflow_tasks
SET status = 'SKIPPED'
WHERE workflow_id = %(id)s::uuid AND status IN ('PENDING', 'READY')
