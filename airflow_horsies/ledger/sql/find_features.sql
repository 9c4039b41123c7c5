-- The features of these worker processes. A row that is older than its process is of an earlier one with the same
-- number.
SELECT worker.hostname, worker.pid, worker.features
FROM json_to_recordset(%(workers)s::json) AS live (hostname text, pid integer, started_at timestamptz)
INNER JOIN airflow_horsies.workers AS worker
    ON
        worker.hostname = live.hostname
        AND worker.pid = live.pid
        AND worker.seen_at >= live.started_at - make_interval(secs => %(clock_seconds)s)
