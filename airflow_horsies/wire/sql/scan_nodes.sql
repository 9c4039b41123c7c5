-- A slice of the nodes of all workflows for one of several readers. The ids are text in one generation and uuid in the
-- other, and are compared as text. Postgres rejects JSON whose strings contain escapes of NUL or half a character.
SELECT
    n.workflow_id, coalesce(w.root_workflow_id, w.id) AS root_workflow_id, w.name AS workflow_name,
    n.task_index AS node, coalesce(n.node_id, n.task_index::text) AS node_name, n.task_name, n.queue_name AS queue,
    n.priority, n.status AS state, n.is_subworkflow AS is_workflow, n.sub_definition_key AS definition_key,
    n.sub_workflow_id, n.task_id,
    ARRAY(
        SELECT coalesce(before.node_id, before.task_index::text)
        FROM horsies_workflow_tasks AS before
        WHERE before.workflow_id = n.workflow_id AND before.task_index = ANY(n.dependencies)
        ORDER BY before.task_index
    ) AS after,
    n.join_type, n.min_success, n.allow_failed_deps AS allow_failed, n.created_at, n.started_at,
    n.completed_at AS finished_at,
    CASE
        WHEN n.status = 'FAILED' AND starts_with(n.result, '{') THEN (
            SELECT coalesce(found.code -> '__builtin_task_code__', found.code) #>> '{}'
            FROM regexp_replace(n.result, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\ufffd', 'g') AS readable
            CROSS JOIN LATERAL (SELECT readable::json -> 'err' -> 'error_code' AS code) AS found
        )
    END AS error_code,
    n.task_kwargs AS kwargs, n.result
FROM horsies_workflow_tasks AS n
LEFT JOIN horsies_workflows AS w ON w.id = n.workflow_id
WHERE
    (%(since)s::timestamptz IS NULL OR n.created_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR n.created_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (n.created_at, n.id::text) >= (%(from_at)s::timestamptz, %(from_key)s::text)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR n.created_at IS NULL
        OR (n.created_at, n.id::text) < (%(to_at)s::timestamptz, %(to_key)s::text)
    )
