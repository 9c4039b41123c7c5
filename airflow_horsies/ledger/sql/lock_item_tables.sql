-- The table locks of a report, before it locks its task: whoever needs the task must not wait with the report for a
-- locked table of ours. Writes nothing.
INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, finished_at)
SELECT chunk.horsies_task_id, 0, 'COMPLETED', 1, 1, now()
FROM airflow_horsies.chunks AS chunk
WHERE FALSE
