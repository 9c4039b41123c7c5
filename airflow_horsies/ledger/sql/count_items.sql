-- How far the items of chunks are that are still requested, and how many others have not completed.
SELECT
    chunk.horsies_task_id::text AS horsies_task_id,
    count(*) FILTER (WHERE requested.place >= 0) AS wanted,
    count(*) FILTER (WHERE requested.place >= 0 AND item.outcome = 'COMPLETED') AS completed,
    count(*) FILTER (WHERE requested.place >= 0 AND item.outcome <> 'COMPLETED') AS failed,
    count(*) FILTER (WHERE requested.place < 0 AND item.outcome IS DISTINCT FROM 'COMPLETED') AS others
FROM airflow_horsies.chunks AS chunk
CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
LEFT JOIN airflow_horsies.items AS item
    ON item.horsies_task_id = chunk.horsies_task_id AND item.number = requested.ordinal - 1
WHERE chunk.horsies_task_id = ANY(%(ids)s::uuid[])
GROUP BY chunk.horsies_task_id
HAVING bool_or(requested.place >= 0)
