-- Which items of chunks have an outcome; one row a chunk, because a batch may be very large.
SELECT
    horsies_task_id::text AS horsies_task_id,
    array_agg(number) FILTER (WHERE outcome = 'COMPLETED') AS completed,
    array_agg(number) FILTER (WHERE outcome <> 'COMPLETED') AS failed
FROM airflow_horsies.items
WHERE horsies_task_id = ANY(%(ids)s::uuid[])
GROUP BY horsies_task_id
