-- Items that no task instance submitted stand in the order of their chunks.
INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places)
SELECT new.horsies_task_id, %(task_name)s, new.size, '', ARRAY(SELECT generate_series(new.start, new.start + new.size - 1))
FROM unnest(%(ids)s::uuid[], %(sizes)s::integer[], %(starts)s::integer[]) AS new (horsies_task_id, size, start)
