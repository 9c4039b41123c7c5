-- A limited number of outcomes of removed chunks. Deleted by ctid, which is safe because outcomes are never updated.
WITH pruned AS (
    DELETE FROM airflow_horsies.items
    WHERE
        ctid = ANY(ARRAY(
            SELECT ended.ctid
            FROM airflow_horsies.items AS ended
            WHERE ended.horsies_task_id = ANY(%(gone)s::uuid[])
            LIMIT %(limit)s
        ))
    RETURNING 1
)

SELECT count(*) AS pruned FROM pruned
