-- Items of chunks that have moved, were replaced, or are no longer requested. A worker does not start a dropped item.
UPDATE airflow_horsies.chunks AS chunk
SET places = changed.places, dropped = chunk.dropped || changed.dropped
FROM json_to_recordset(%(chunks)s::json) AS changed (horsies_task_id uuid, places integer[], dropped integer[])
WHERE chunk.horsies_task_id = changed.horsies_task_id
