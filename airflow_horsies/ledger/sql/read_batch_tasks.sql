-- As read_batch, with the number of requested items of a chunk instead of their places.
SELECT
    sent.horsies_task_id::text AS horsies_task_id, sent.life, sent.position,
    cardinality(array_remove(chunk.places, -1)) AS items
FROM airflow_horsies.known_submissions AS sent
LEFT JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
WHERE
    sent.namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR sent.base_url IN (%(base_url)s::text, ''))
    AND sent.dag_id = %(dag_id)s
    AND sent.run_id = %(run_id)s
    AND sent.task_id = %(task_id)s
    AND sent.map_index = %(map_index)s
    AND sent.is_latest
ORDER BY sent.position
