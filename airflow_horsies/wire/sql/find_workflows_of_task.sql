-- The workflow of a node and the workflows around it, innermost first.
WITH RECURSIVE around AS (
    SELECT workflow.id, workflow.parent_workflow_id, 1 AS depth
    FROM horsies_workflow_tasks AS node
    INNER JOIN horsies_workflows AS workflow ON workflow.id = node.workflow_id
    WHERE node.task_id = %(id)s
    UNION ALL
    SELECT parent.id, parent.parent_workflow_id, around.depth + 1
    FROM around
    INNER JOIN horsies_workflows AS parent ON parent.id = around.parent_workflow_id
    WHERE around.depth < 50
)

SELECT around.id::text AS id
FROM around
ORDER BY around.depth
