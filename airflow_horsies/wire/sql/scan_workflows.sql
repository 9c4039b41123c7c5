-- A slice of all workflows for one of several readers. The ids are text in one generation and uuid in the other, and
-- are compared as text. Postgres rejects JSON whose strings contain escapes of NUL or half a character.
SELECT
    w.id AS workflow_id, w.name, w.definition_key, w.status AS state, w.on_error, w.depth,
    coalesce(w.root_workflow_id, w.id) AS root_workflow_id, w.parent_workflow_id, w.parent_task_index AS parent_node,
    w.output_task_index AS output_node, w.created_at, w.sent_at, w.started_at,
    -- A cancelled workflow has no other time.
    CASE
        WHEN w.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') THEN coalesce(w.completed_at, w.updated_at)
    END AS finished_at,
    w.updated_at,
    -- A workflow that completed keeps the error of a node that was allowed to fail. Some errors are plain text.
    CASE
        WHEN w.status <> 'COMPLETED' AND starts_with(w.error, '{') THEN (
            SELECT coalesce(found.code -> '__builtin_task_code__', found.code) #>> '{}'
            FROM regexp_replace(w.error, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\ufffd', 'g') AS readable
            CROSS JOIN LATERAL (
                SELECT coalesce(readable::json -> 'err', readable::json) -> 'error_code' AS code
            ) AS found
        )
    END AS error_code,
    w.error, w.result
FROM horsies_workflows AS w
WHERE
    (%(since)s::timestamptz IS NULL OR w.created_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR w.created_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (w.created_at, w.id::text) >= (%(from_at)s::timestamptz, %(from_key)s::text)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR w.created_at IS NULL
        OR (w.created_at, w.id::text) < (%(to_at)s::timestamptz, %(to_key)s::text)
    )
