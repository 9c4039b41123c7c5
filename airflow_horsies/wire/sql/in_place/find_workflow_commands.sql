-- What these workflows are, node by node; the tables of workflows keep them until they are pruned.
SELECT
    w.id::text AS id, w.name, w.status, w.definition_key, n.task_index, n.node_id, n.task_name, n.is_subworkflow,
    n.task_kwargs, n.dependencies, n.args_from::text AS args_from, n.join_type, n.min_success, n.allow_failed_deps
FROM horsies_workflows AS w
LEFT JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id
WHERE w.id = ANY(%(ids)s::text[])
ORDER BY w.id, n.task_index
