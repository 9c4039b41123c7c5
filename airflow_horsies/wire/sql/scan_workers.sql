-- A slice of the reports of workers, for one of several readers.
SELECT
    s.worker_id, s.snapshot_at, s.hostname, s.pid, s.processes, s.max_claim_batch, s.max_claim_per_worker,
    s.cluster_wide_cap, s.queues::text[] AS queues, s.queue_priorities::text AS queue_priorities,
    s.queue_max_concurrency::text AS queue_max_concurrency, s.recovery_config::text AS recovery_config,
    s.tasks_running, s.tasks_claimed, s.memory_usage_mb, s.memory_percent, s.cpu_percent, s.worker_started_at
FROM horsies_worker_states AS s
WHERE
    (%(since)s::timestamptz IS NULL OR s.snapshot_at >= %(since)s::timestamptz)
    AND (%(until)s::timestamptz IS NULL OR s.snapshot_at < %(until)s::timestamptz)
    AND (
        %(from_at)s::timestamptz IS NULL
        OR (s.snapshot_at, s.worker_id) >= (%(from_at)s::timestamptz, %(from_key)s::text)
    )
    AND (
        %(to_at)s::timestamptz IS NULL OR s.snapshot_at IS NULL
        OR (s.snapshot_at, s.worker_id) < (%(to_at)s::timestamptz, %(to_key)s::text)
    )
