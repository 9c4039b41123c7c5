-- Failed nodes become as the pause of horsies leaves a node that has not started. Call it with locks on the workflows.
WITH cleared AS (
    UPDATE horsies_workflows
    SET error = NULL, updated_at = now()
    WHERE id = ANY(%(workflow_ids)s::uuid[]) AND status = 'PAUSED'
    RETURNING id
)
UPDATE horsies_workflow_tasks AS n
SET status = 'READY', task_id = NULL, result = NULL, error = NULL, started_at = NULL, completed_at = NULL
FROM cleared
WHERE n.workflow_id = cleared.id AND n.id = ANY(%(nodes)s::uuid[]) AND n.status = 'FAILED'
RETURNING n.node_id
