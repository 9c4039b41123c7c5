-- Set when a parked task resumes by itself: horsies has set the next interval of its retry policy.
UPDATE horsies_tasks
SET next_retry_at = %(due_at)s::timestamptz, enqueued_at = %(due_at)s::timestamptz, updated_at = now()
WHERE id = %(id)s AND status = 'PENDING' AND retry_count = %(attempt)s
