-- The workflow itself, and the paused ones in its tree whose parents are not paused: to resume a workflow resumes the
-- paused ones in it.
WITH RECURSIVE tree AS (
    SELECT workflow.id, workflow.status, 0 AS depth, FALSE AS is_below_paused
    FROM horsies_workflows AS workflow
    WHERE workflow.id = %(workflow_id)s::text
    UNION ALL
    SELECT child.id, child.status, tree.depth + 1, tree.status = 'PAUSED'
    FROM tree
    INNER JOIN horsies_workflows AS child ON child.parent_workflow_id = tree.id
)
SELECT tree.id::text AS id, tree.status = 'PAUSED' AND NOT tree.is_below_paused AS is_to_be_resumed
FROM tree
WHERE tree.depth = 0 OR tree.status = 'PAUSED'
ORDER BY tree.depth, tree.id
