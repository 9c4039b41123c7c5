-- Make a parked task due and wake the workers of its queue. A task that waits for another retry is not parked: its
-- number of retries is not that of the attempt that parked.
WITH resumed AS (
    UPDATE horsies_tasks
    SET next_retry_at = now(), enqueued_at = now(), updated_at = now()
    WHERE id = %(id)s AND status = 'PENDING' AND retry_count = %(attempt)s AND next_retry_at > now()
    RETURNING id, queue_name
)

SELECT resumed.id::text AS id, pg_notify('task_queue_' || resumed.queue_name, resumed.id::text) AS notified
FROM resumed
