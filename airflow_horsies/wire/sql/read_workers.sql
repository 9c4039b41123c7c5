-- A worker reports at its own interval (1 to 300 s, 30 by default) and not when it ends, so it counts as alive for
-- three intervals; with a single report, the default interval is assumed.
SELECT
    last.worker_id,
    last.hostname,
    last.pid,
    last.queues::text[] AS queues,
    last.processes,
    last.tasks_running,
    last.tasks_claimed,
    last.worker_started_at,
    last.snapshot_at,
    last.memory_usage_mb AS memory_mb,
    last.cpu_percent,
    last.snapshot_at + 3 * coalesce(last.snapshot_at - before.snapshot_at, interval '30 seconds')
        + interval '5 seconds' > now() AS alive
FROM (
    SELECT DISTINCT ON (worker_id)
        worker_id, hostname, pid, queues, processes, tasks_running, tasks_claimed, worker_started_at,
        snapshot_at, memory_usage_mb, cpu_percent
    FROM horsies_worker_states
    WHERE snapshot_at > now() - make_interval(secs => %(within_seconds)s)
    ORDER BY worker_id, snapshot_at DESC
) AS last
LEFT JOIN LATERAL (
    SELECT state.snapshot_at
    FROM horsies_worker_states AS state
    WHERE state.worker_id = last.worker_id AND state.snapshot_at < last.snapshot_at
    ORDER BY state.snapshot_at DESC
    LIMIT 1
) AS before ON TRUE
ORDER BY alive DESC, last.worker_started_at, last.worker_id
