-- Items of a batch that have moved or are no longer requested; requested items are no longer released.
UPDATE airflow_horsies.submissions AS sent
SET place = moved.place, released_at = CASE WHEN moved.place < 0 THEN now() END
FROM json_to_recordset(%(items)s::json) AS moved (position integer, place integer)
WHERE
    sent.namespace = %(namespace)s
    AND sent.dag_id = %(dag_id)s
    AND sent.run_id = %(run_id)s
    AND sent.task_id = %(task_id)s
    AND sent.map_index = %(map_index)s
    AND sent.life = %(life)s
    AND sent.position = moved.position
