-- The newest waits of tasks and of the tasks of workflows, and when each received its signal.
SELECT
    parking.horsies_task_id::text AS horsies_task_id, parking.targets::text[] AS targets, parking.name, parking.attempt,
    parking.times, parking.parked_at, parking.due_at, message.consumed_at
FROM airflow_horsies.parkings AS parking
LEFT JOIN airflow_horsies.messages AS message
    ON
        message.consumed_by = parking.horsies_task_id
        AND message.name = parking.name
        AND message.occurrence = parking.occurrence
WHERE parking.targets && %(targets)s::uuid[]
ORDER BY parking.parked_at DESC, parking.horsies_task_id DESC
LIMIT %(limit)s
