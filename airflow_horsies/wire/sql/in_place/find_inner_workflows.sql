-- Workflows and those inside them, outer ones first, without their nodes.
SELECT
    w.id::text AS id, w.name, w.status, w.updated_at,
    CASE WHEN w.id = ANY(%(ids)s::text[]) THEN w.id ELSE w.root_workflow_id END::text AS root_id
FROM horsies_workflows AS w
WHERE w.id = ANY(%(ids)s::text[]) OR w.root_workflow_id = ANY(%(ids)s::text[])
ORDER BY w.depth, w.id
LIMIT %(limit)s
