-- The states of workflows, and whether a workflow inside is paused: a pause inside does not change the outer one.
SELECT
    w.id::text AS id,
    w.status,
    CASE
        WHEN w.status NOT IN ('PENDING', 'RUNNING') THEN FALSE
        WHEN w.parent_workflow_id IS NULL THEN EXISTS (
            SELECT FROM horsies_workflows AS inner_one
            WHERE inner_one.root_workflow_id = w.id AND inner_one.status = 'PAUSED'
        )
        ELSE EXISTS (
            WITH RECURSIVE below AS (
                SELECT child.id, child.status
                FROM horsies_workflows AS child
                WHERE child.parent_workflow_id = w.id
                UNION ALL
                SELECT child.id, child.status
                FROM horsies_workflows AS child
                INNER JOIN below ON child.parent_workflow_id = below.id
            )
            SELECT FROM below WHERE below.status = 'PAUSED'
        )
    END AS is_paused_inside
FROM horsies_workflows AS w
WHERE w.id = ANY(%(ids)s::text[])
