-- How far the items of chunks are that are still requested.
SELECT
    chunk.horsies_task_id::text AS horsies_task_id,
    count(*) AS wanted,
    count(*) FILTER (WHERE item.outcome = 'COMPLETED') AS completed,
    count(*) FILTER (WHERE item.outcome <> 'COMPLETED') AS failed
FROM airflow_horsies.chunks AS chunk
CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
LEFT JOIN airflow_horsies.items AS item
    ON item.horsies_task_id = chunk.horsies_task_id AND item.number = requested.ordinal - 1
WHERE chunk.horsies_task_id = ANY(%(ids)s::uuid[]) AND requested.place >= 0
GROUP BY chunk.horsies_task_id
