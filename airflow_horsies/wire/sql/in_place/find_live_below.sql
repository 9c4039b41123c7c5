-- The live workflows inside a workflow, outer ones first.
WITH RECURSIVE below AS (
    SELECT w.id, w.status, w.depth
    FROM horsies_workflows AS w
    WHERE w.parent_workflow_id = %(id)s::text
    UNION ALL
    SELECT w.id, w.status, w.depth
    FROM horsies_workflows AS w
    INNER JOIN below ON w.parent_workflow_id = below.id
)
SELECT id::text AS id
FROM below
WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')
ORDER BY depth, id
