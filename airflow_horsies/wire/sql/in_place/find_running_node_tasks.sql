-- The tasks that run in a workflow and in those inside it: horsies lets them run on when the workflow is cancelled.
WITH RECURSIVE tree AS (
    SELECT w.id
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::text
    UNION ALL
    SELECT w.id
    FROM horsies_workflows AS w
    INNER JOIN tree ON w.parent_workflow_id = tree.id
)
SELECT t.id::text AS id
FROM tree
INNER JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id
INNER JOIN horsies_tasks AS t ON t.id = n.task_id
WHERE n.status = 'RUNNING' AND t.status = 'RUNNING'
ORDER BY t.id
