-- The number of items of the last submission of a task instance by state. An item of a chunk without an outcome has the
-- state of its chunk. The items of a completed chunk need not be read: all have completed.
WITH task AS (
    SELECT known.horsies_task_id, given.status, chunk.horsies_task_id IS NOT NULL AS is_chunk
    FROM airflow_horsies.known_submissions AS known
    LEFT JOIN unnest(%(ids)s::uuid[], %(statuses)s::text[]) AS given (id, status) ON given.id = known.horsies_task_id
    LEFT JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    WHERE
        known.namespace = %(namespace)s
        AND (%(base_url)s::text = '' OR known.base_url IN (%(base_url)s::text, ''))
        AND known.dag_id = %(dag_id)s
        AND known.run_id = %(run_id)s
        AND known.task_id = %(task_id)s
        AND known.map_index = %(map_index)s
        AND known.is_latest
),
counted AS (
    SELECT task.status AS state, count(*) AS count
    FROM task
    WHERE NOT task.is_chunk
    GROUP BY task.status
    UNION ALL
    SELECT task.status, sum(cardinality(array_remove(chunk.places, -1)))
    FROM task
    INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    WHERE task.status = 'COMPLETED'
    GROUP BY task.status
    UNION ALL
    SELECT coalesce(ended.outcome, task.status), count(*)
    FROM task
    INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
    LEFT JOIN airflow_horsies.items AS ended
        ON ended.horsies_task_id = task.horsies_task_id AND ended.number = requested.ordinal - 1
    WHERE requested.place >= 0 AND task.status IS DISTINCT FROM 'COMPLETED'
    GROUP BY coalesce(ended.outcome, task.status)
)
SELECT counted.state, sum(counted.count)::bigint AS count
FROM counted
WHERE counted.state IS NOT NULL
GROUP BY counted.state
