-- Tasks that a worker has claimed and not started go back to their nodes, through the function of horsies.
WITH abandoned AS MATERIALIZED (
    SELECT ended.task_id
    FROM horsies_abandon_nodes_of_paused_workflows(%(ids)s::varchar[]) AS ended
)
UPDATE horsies_workflow_tasks AS n
SET status = 'READY', task_id = NULL, started_at = NULL
FROM abandoned
WHERE n.task_id = abandoned.task_id AND n.status IN ('ENQUEUED', 'RUNNING')
