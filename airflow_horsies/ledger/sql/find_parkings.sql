-- The waits for a signal, the longest first. A message is for one of them: the others wait on.
SELECT parking.horsies_task_id::text AS horsies_task_id, parking.attempt
FROM airflow_horsies.parkings AS parking
WHERE
    parking.targets @> ARRAY[%(target)s::uuid] AND parking.name = %(name)s
    AND NOT EXISTS (
        SELECT FROM airflow_horsies.messages AS message
        WHERE
            message.consumed_by = parking.horsies_task_id AND message.name = parking.name
            AND message.occurrence = parking.occurrence
    )
ORDER BY parking.parked_at
LIMIT %(limit)s
