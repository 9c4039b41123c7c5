-- How many items of chunks did not complete and were sent again, by the same task instance, in none of the given tasks.
-- The task instances first: each of many tasks would be joined with all of them.
WITH counted AS (
    SELECT DISTINCT namespace, dag_id, run_id, task_id, map_index
    FROM airflow_horsies.submissions
    WHERE horsies_task_id = ANY(%(ids)s::uuid[])
),
sent AS (
    SELECT DISTINCT again.horsies_task_id, again.work, again.occurrence, again.place
    FROM counted
    INNER JOIN airflow_horsies.submissions AS again USING (namespace, dag_id, run_id, task_id, map_index)
),
requested AS (
    SELECT
        substring(chunk.works FROM item.ordinal::integer * 32 - 31 FOR 32) AS work,
        coalesce(chunk.occurrences[item.ordinal], 0) AS occurrence,
        chunk.horsies_task_id = ANY(%(among)s::uuid[]) AS is_given
    FROM airflow_horsies.chunks AS chunk
    CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS item (place, ordinal)
    WHERE chunk.horsies_task_id IN (SELECT horsies_task_id FROM sent) AND item.place >= 0
    UNION ALL
    SELECT work, occurrence, horsies_task_id = ANY(%(among)s::uuid[])
    FROM sent
    WHERE place IS NULL OR place >= 0
),
elsewhere AS (
    SELECT work, occurrence
    FROM requested
    GROUP BY work, occurrence
    HAVING NOT bool_or(is_given)
)
SELECT chunk.horsies_task_id::text AS horsies_task_id, count(*) AS items
FROM airflow_horsies.chunks AS chunk
CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS item (place, ordinal)
INNER JOIN elsewhere
    ON elsewhere.work = substring(chunk.works FROM item.ordinal::integer * 32 - 31 FOR 32)
    AND elsewhere.occurrence = coalesce(chunk.occurrences[item.ordinal], 0)
WHERE
    chunk.horsies_task_id = ANY(%(ids)s::uuid[])
    AND item.place < 0
    AND NOT EXISTS (
        SELECT FROM airflow_horsies.items AS ended
        WHERE
            ended.horsies_task_id = chunk.horsies_task_id
            AND ended.number = item.ordinal - 1
            AND ended.outcome = 'COMPLETED'
    )
GROUP BY chunk.horsies_task_id
