-- A task that has parked or is about to; none if it has ended and moved to the history.
SELECT status, retry_count, queue_name
FROM horsies_tasks
WHERE id = %(id)s
FOR UPDATE
