-- The tasks of the last submission of a task instance of this deployment; for a chunk, the places of its items.
SELECT sent.horsies_task_id::text AS horsies_task_id, sent.life, sent.position, chunk.places
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
