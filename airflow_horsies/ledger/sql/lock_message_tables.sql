-- The table locks of a wait, before it locks its task: whoever needs the task must not wait with it for a locked table of
-- ours. Writes nothing.
WITH messages AS (
    UPDATE airflow_horsies.messages SET consumed_at = now() WHERE FALSE
)

INSERT INTO airflow_horsies.parkings (horsies_task_id, name, occurrence, targets, attempt)
SELECT message.id, message.name, 0, '{}', 1
FROM airflow_horsies.messages AS message
WHERE FALSE
