-- The attempts written by a range of transactions. A row has 32 of the 64 bits of its transaction: it is the last one
-- with these bits that is visible here. The time limits the scan to an index range.
SELECT
    a.task_id, t.task_name, t.queue_name AS queue, a.attempt, a.outcome, a.will_retry,
    a.started_at, a.finished_at, a.error_code, a.error_message, a.failed_reason, a.worker_id,
    a.worker_hostname AS hostname, a.worker_pid AS pid, a.worker_process_name AS process_name
FROM horsies_task_attempts AS a
CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS number) AS now_at
LEFT JOIN horsies_tasks AS t ON t.id = a.task_id
WHERE
    (%(since)s::timestamptz IS NULL OR a.finished_at >= %(since)s::timestamptz - interval '1 hour')
    AND now_at.number - ((now_at.number - a.xmin::text::bigint) & 4294967295) >= %(from_transaction)s::bigint
    AND now_at.number - ((now_at.number - a.xmin::text::bigint) & 4294967295) < %(to_transaction)s::bigint
