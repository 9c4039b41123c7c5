-- The failed nodes of a workflow and of those inside it, with the names of the nodes on the way to them. The node of a
-- wrapper that starts a registered workflow goes by the key of that.
WITH RECURSIVE tree AS (
    SELECT w.id, w.definition_key, ARRAY[]::text[] AS path
    FROM horsies_workflows AS w
    WHERE w.id = %(id)s::uuid
    UNION ALL
    SELECT
        w.id,
        w.definition_key,
        tree.path || CASE
            WHEN tree.definition_key = %(wrapper_key)s THEN coalesce(n.sub_definition_key, n.node_id)
            ELSE n.node_id
        END::text
    FROM tree
    INNER JOIN horsies_workflows AS w ON w.parent_workflow_id = tree.id
    INNER JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id AND n.task_index = w.parent_task_index
)
SELECT
    tree.id::text AS workflow_id, tree.path, n.node_id, n.task_name, n.task_id::text AS task_id, n.is_subworkflow,
    n.sub_definition_key, tree.definition_key, n.sub_workflow_id::text AS sub_workflow_id,
    left(n.result, %(chars)s::integer) AS result
FROM tree
INNER JOIN horsies_workflow_tasks AS n ON n.workflow_id = tree.id
WHERE n.status = 'FAILED'
ORDER BY n.completed_at, n.task_index
LIMIT %(limit)s
