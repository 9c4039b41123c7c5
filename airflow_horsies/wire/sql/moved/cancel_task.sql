-- Not preceded by a lock on the row: the functions of horsies lock the id first and the row second, and the other order
-- could deadlock with a worker that finishes the task.
SELECT outcome, observed_status
FROM horsies_cancel_locked_task(%(id)s::uuid, %(states)s::text[])
