-- The task that a worker process runs now. A dead worker may have had the same host name and process id: newest first.
SELECT id::text AS id, claimed_by_worker_id AS worker_id, claimed_at
FROM horsies_tasks
WHERE status = 'RUNNING' AND worker_pid = %(pid)s AND worker_hostname = %(hostname)s
ORDER BY started_at DESC
LIMIT 1
