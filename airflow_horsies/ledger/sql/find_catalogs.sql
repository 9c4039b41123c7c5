-- What these worker processes know; one that has not recorded it is omitted. A row that is older than its process is of
-- an earlier one with the same number.
SELECT
    worker.hostname,
    worker.pid,
    array_agg(entry.name ORDER BY entry.name) FILTER (WHERE entry.kind = %(kind)s) AS names,
    max(entry.parameters) FILTER (WHERE entry.kind = %(kind)s AND entry.name = %(name)s) AS parameters
FROM json_to_recordset(%(workers)s::json) AS live (hostname text, pid integer, started_at timestamptz)
INNER JOIN airflow_horsies.catalog_workers AS worker
    ON
        worker.hostname = live.hostname
        AND worker.pid = live.pid
        AND worker.seen_at >= live.started_at - make_interval(secs => %(clock_seconds)s)
INNER JOIN airflow_horsies.catalog AS entry ON entry.digest = worker.digest
GROUP BY worker.hostname, worker.pid
