-- A chunk whose record in submissions was lost has its row already.
INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, occurrences, rounds, places)
SELECT new.horsies_task_id, new.task_name, new.size, new.works, new.occurrences, new.rounds, new.places
FROM json_to_recordset(%(chunks)s::json) AS new (
    horsies_task_id uuid, task_name text, size integer, works bytea, occurrences integer[], rounds integer[],
    places integer[]
)
ON CONFLICT (horsies_task_id) DO UPDATE
SET works = excluded.works, occurrences = excluded.occurrences, rounds = excluded.rounds, places = excluded.places
