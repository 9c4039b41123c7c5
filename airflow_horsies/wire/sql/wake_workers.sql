-- A hint to the workers of a queue that a parked task is due.
SELECT pg_notify('task_queue_' || %(queue)s, %(id)s) AS notified
