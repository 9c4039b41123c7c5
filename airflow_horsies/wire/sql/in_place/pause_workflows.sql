-- A workflow that runs and the running ones inside it.
WITH RECURSIVE tree AS (
    SELECT w.id
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::text
    UNION ALL
    SELECT w.id
    FROM horsies_workflows AS w
    INNER JOIN tree ON w.parent_workflow_id = tree.id
)
UPDATE horsies_workflows AS w
SET status = 'PAUSED', updated_at = now()
FROM tree
WHERE w.id = tree.id AND w.status = 'RUNNING'
RETURNING w.id::text AS id
