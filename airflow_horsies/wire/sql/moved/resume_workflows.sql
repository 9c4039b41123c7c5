-- A workflow and those inside it, as far as they are paused. The recovery of the workers starts what is due.
WITH RECURSIVE tree AS (
    SELECT w.id
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::uuid
    UNION ALL
    SELECT w.id
    FROM horsies_workflows AS w
    INNER JOIN tree ON w.parent_workflow_id = tree.id
)
UPDATE horsies_workflows AS w
SET status = 'RUNNING', updated_at = now()
FROM tree
WHERE w.id = tree.id AND w.status = 'PAUSED'
RETURNING w.id::text AS id
