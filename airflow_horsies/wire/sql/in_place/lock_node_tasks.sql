-- The live tasks of the nodes that have not ended, so that no worker starts one.
SELECT t.id::text AS id
FROM horsies_tasks AS t
INNER JOIN horsies_workflow_tasks AS n ON n.task_id = t.id
WHERE
    n.workflow_id = %(id)s::text AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
    AND t.status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
ORDER BY t.id
FOR UPDATE OF t
