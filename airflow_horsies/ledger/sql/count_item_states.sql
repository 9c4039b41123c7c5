-- The number of requested items of tasks by state; the status of a task is NULL if horsies no longer keeps it. An item of
-- a chunk without an outcome has the state of its chunk. The items of a completed chunk need not be read: all have
-- completed.
WITH task AS (
    SELECT
        given.id, given.status, chunk.places,
        coalesce(cardinality(array_remove(chunk.places, -1)), 1) AS wanted
    FROM unnest(%(ids)s::uuid[], %(statuses)s::text[]) AS given (id, status)
    LEFT JOIN airflow_horsies.chunks AS chunk ON chunk.horsies_task_id = given.id
),
ended AS (
    SELECT task.id, item.outcome, item.count
    FROM task
    CROSS JOIN LATERAL (
        SELECT item.outcome, count(*) AS count
        FROM airflow_horsies.items AS item
        WHERE
            item.horsies_task_id = task.id
            -- The array is read only if some items are no longer requested.
            AND (task.wanted = cardinality(task.places) OR task.places[item.number + 1] >= 0)
        GROUP BY item.outcome
    ) AS item
    WHERE task.status IS DISTINCT FROM 'COMPLETED' AND task.places IS NOT NULL
),
counted AS (
    SELECT ended.outcome AS state, ended.count
    FROM ended
    UNION ALL
    SELECT task.status, task.wanted - coalesce(of_task.count, 0)
    FROM task
    LEFT JOIN (SELECT ended.id, sum(ended.count) AS count FROM ended GROUP BY ended.id) AS of_task USING (id)
    WHERE task.status IS NOT NULL
)
SELECT counted.state, sum(counted.count)::bigint AS count
FROM counted
GROUP BY counted.state
HAVING sum(counted.count) > 0
