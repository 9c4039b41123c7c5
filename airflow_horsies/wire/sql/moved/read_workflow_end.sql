-- Of a wrapper that starts a registered workflow, the result is that of the workflow itself: horsies leaves out the
-- values of the last nodes of an inner workflow without an output node.
SELECT
    w.id::text AS id, w.name, w.status, w.definition_key, w.error,
    CASE
        WHEN w.definition_key = %(wrapper_key)s THEN coalesce(
            (
                SELECT inner_one.result
                FROM horsies_workflows AS inner_one
                WHERE inner_one.parent_workflow_id = w.id AND inner_one.status = 'COMPLETED'
                ORDER BY inner_one.created_at DESC
                LIMIT 1
            ),
            w.result
        )
        ELSE w.result
    END AS result
FROM horsies_workflows AS w
WHERE w.id = %(id)s::uuid
