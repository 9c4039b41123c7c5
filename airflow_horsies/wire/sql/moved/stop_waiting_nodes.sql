-- A node whose task waits for its next attempt does not run, though horsies calls it RUNNING; its function cancels only
-- tasks of nodes that are ENQUEUED. Call it with locks on the workflow, the tasks and the nodes.
UPDATE horsies_workflow_tasks AS n
SET status = 'ENQUEUED'
FROM horsies_tasks AS t
WHERE
    n.workflow_id = %(id)s::uuid AND n.status = 'RUNNING' AND t.id = n.task_id AND t.status IN ('PENDING', 'CLAIMED')
