-- Locks the paused workflows of a tree, and finds their failed nodes.
WITH RECURSIVE tree AS (
    SELECT w.id
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::uuid
    UNION ALL
    SELECT w.id
    FROM horsies_workflows AS w
    INNER JOIN tree ON w.parent_workflow_id = tree.id
),
paused AS MATERIALIZED (
    SELECT w.id
    FROM horsies_workflows AS w
    INNER JOIN tree ON tree.id = w.id
    WHERE w.status = 'PAUSED'
    ORDER BY w.depth, w.id
    FOR UPDATE OF w
)
SELECT
    paused.id::text AS workflow_id, n.id::text AS node, n.node_id,
    n.is_subworkflow AND n.sub_workflow_id IS NOT NULL AS has_ended_workflow
FROM paused
LEFT JOIN horsies_workflow_tasks AS n ON n.workflow_id = paused.id AND n.status = 'FAILED'
ORDER BY paused.id, n.task_index
