-- The workflows around these: a notification names only the workflow that changed.
WITH RECURSIVE outer_ones AS (
    SELECT w.parent_workflow_id AS id
    FROM horsies_workflows AS w
    WHERE w.id = ANY(%(ids)s::text[]) AND w.parent_workflow_id IS NOT NULL
    UNION
    SELECT w.parent_workflow_id
    FROM horsies_workflows AS w
    INNER JOIN outer_ones ON outer_ones.id = w.id
    WHERE w.parent_workflow_id IS NOT NULL
)
SELECT id::text AS id FROM outer_ones
