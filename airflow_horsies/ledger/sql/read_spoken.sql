-- What workers that reported lately have recorded of these tasks, by the queues that they serve.
WITH live AS (
    SELECT DISTINCT worker.digest, served.queue
    FROM airflow_horsies.catalog_workers AS worker
    CROSS JOIN unnest(worker.queues) AS served (queue)
    WHERE
        worker.seen_at > now() - make_interval(secs => %(live_seconds)s::double precision)
        AND served.queue = ANY(%(queues)s::text[])
        AND EXISTS (SELECT FROM airflow_horsies.catalog AS entry WHERE entry.digest = worker.digest)
)

SELECT DISTINCT live.queue, entry.name, entry.parameters
FROM live
LEFT JOIN airflow_horsies.catalog AS entry
    ON entry.digest = live.digest AND entry.kind = %(kind)s AND entry.name = ANY(%(names)s::text[])
