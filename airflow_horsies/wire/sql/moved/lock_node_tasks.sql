-- The live tasks of the nodes that have not ended, so that no worker starts one. The functions of horsies lock the id of
-- a task first and its row second, and the other order could deadlock with a worker that finishes it.
WITH live AS MATERIALIZED (
    SELECT t.id
    FROM horsies_tasks AS t
    INNER JOIN horsies_workflow_tasks AS n ON n.task_id = t.id
    WHERE n.workflow_id = %(id)s::uuid AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
    ORDER BY t.id
),
locked AS MATERIALIZED (
    SELECT live.id, pg_advisory_xact_lock(hashtextextended(live.id::text, 731)) AS locked
    FROM live
)
SELECT t.id::text AS id
FROM horsies_tasks AS t
INNER JOIN locked ON locked.id = t.id
ORDER BY t.id
FOR UPDATE OF t
