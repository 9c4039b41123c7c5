-- As lock_parked, without a lock.
SELECT status, retry_count
FROM horsies_tasks
WHERE id = %(id)s
