-- Cancels the tasks of nodes that have not started, through the function of horsies, and skips their nodes.
WITH cancelled AS MATERIALIZED (
    SELECT ended.task_id
    FROM horsies_cancel_nodes_of_cancelled_workflow(ARRAY[%(id)s::varchar]) AS ended
)
UPDATE horsies_workflow_tasks AS n
SET status = 'SKIPPED', completed_at = now()
FROM cancelled
WHERE n.workflow_id = %(id)s::text AND n.status = 'ENQUEUED' AND n.task_id = cancelled.task_id
