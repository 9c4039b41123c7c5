-- The outermost workflows, the one that changed last first; the id breaks ties, so that paging skips nothing. The time of
-- the change has an index, that of sending has none. A pause inside a workflow does not change its own state.
SELECT
    w.id::text AS id, w.name, w.definition_key, w.status, w.sent_at, w.started_at, w.updated_at,
    -- A cancelled workflow has no other time.
    CASE
        WHEN w.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN coalesce(w.completed_at, w.updated_at)
    END AS finished_at,
    inside.is_paused AS is_paused_inside
FROM horsies_workflows AS w
CROSS JOIN LATERAL (
    SELECT w.status IN ('PENDING', 'RUNNING') AND EXISTS (
        SELECT FROM horsies_workflows AS inner_one
        WHERE inner_one.root_workflow_id = w.id AND inner_one.status = 'PAUSED'
    ) AS is_paused
) AS inside
WHERE
    w.parent_workflow_id IS NULL
    AND (
        %(states)s::text[] IS NULL
        OR w.status = ANY(%(states)s::text[])
        OR ('PAUSED' = ANY(%(states)s::text[]) AND inside.is_paused)
    )
    AND (%(name)s::text IS NULL OR w.name = %(name)s::text OR w.definition_key = %(name)s::text)
    AND (
        %(before_at)s::timestamptz IS NULL
        OR (w.updated_at, w.id) < (%(before_at)s::timestamptz, %(before_id)s::uuid)
    )
ORDER BY w.updated_at DESC, w.id DESC
LIMIT %(limit)s
