-- A workflow with the workflows inside it, a row a node. One statement, so one snapshot. Long results are left out, and
-- errors are given more room, because their cause is what one looks for.
WITH RECURSIVE tree AS (
    SELECT
        w.id, w.name, w.status, w.on_error, w.definition_key, w.output_task_index, w.depth, w.parent_workflow_id,
        w.parent_task_index, w.sent_at, w.started_at, w.completed_at, w.updated_at, w.error
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::uuid
    UNION ALL
    SELECT
        w.id, w.name, w.status, w.on_error, w.definition_key, w.output_task_index, w.depth, w.parent_workflow_id,
        w.parent_task_index, w.sent_at, w.started_at, w.completed_at, w.updated_at, w.error
    FROM horsies_workflows AS w
    INNER JOIN tree ON w.parent_workflow_id = tree.id
)
SELECT
    tree.id::text AS workflow_id, tree.name, tree.status, tree.on_error, tree.definition_key, tree.output_task_index,
    tree.depth, tree.parent_workflow_id::text AS parent_workflow_id, tree.parent_task_index, tree.sent_at,
    tree.started_at,
    -- A cancelled workflow has no other time.
    CASE
        WHEN tree.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
            THEN coalesce(tree.completed_at, tree.updated_at)
    END AS finished_at,
    CASE WHEN n.task_index IS NULL OR n.task_index = 0 THEN left(tree.error, %(error_chars)s::integer) END AS error,
    n.task_index, n.node_id, n.task_name, n.status AS node_status, n.is_subworkflow, n.queue_name, n.dependencies,
    n.args_from::text AS args_from, n.join_type, n.min_success, n.allow_failed_deps, n.task_id::text AS task_id,
    n.sub_workflow_id::text AS sub_workflow_id, n.started_at AS node_started_at, n.completed_at AS node_finished_at,
    CASE WHEN length(n.result) <= cut.chars THEN n.result END AS result,
    coalesce(length(n.result) > cut.chars, FALSE) AS is_result_cut
FROM tree
LEFT JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id
CROSS JOIN LATERAL (
    SELECT CASE n.status WHEN 'FAILED' THEN %(error_chars)s::integer ELSE %(result_chars)s::integer END AS chars
) AS cut
ORDER BY tree.depth, tree.id, n.task_index
LIMIT %(limit)s
