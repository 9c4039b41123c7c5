-- A node of a workflow, or of a workflow inside it: of no other one, whatever was asked for.
SELECT n.node_id, n.task_name, n.task_id::text AS task_id
FROM horsies_workflows AS w
INNER JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id
WHERE
    w.id = %(id)s::uuid
    AND (w.id = %(root)s::uuid OR w.root_workflow_id = %(root)s::uuid)
    AND n.task_index = %(index)s::integer
