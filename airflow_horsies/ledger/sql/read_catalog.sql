SELECT
    entry.kind,
    entry.name,
    entry.queue,
    entry.parameters,
    entry.doc,
    count(DISTINCT (worker.hostname, worker.pid)) AS workers,
    array_agg(DISTINCT worker.release ORDER BY worker.release) AS releases,
    (array_agg(DISTINCT worker.hostname ORDER BY worker.hostname))[:10] AS hosts,
    array_agg(DISTINCT served.queue ORDER BY served.queue) AS queues,
    max(worker.seen_at) AS seen_at,
    max(worker.seen_at) > now() - make_interval(secs => %(live_seconds)s::double precision) AS is_live
FROM airflow_horsies.catalog AS entry
INNER JOIN airflow_horsies.catalog_workers AS worker ON worker.digest = entry.digest
CROSS JOIN unnest(worker.queues) AS served (queue)
WHERE
    (%(kind)s::text IS NULL OR entry.kind = %(kind)s)
    AND (%(name)s::text IS NULL OR entry.name = %(name)s)
    AND (%(queue)s::text IS NULL OR %(queue)s = ANY(worker.queues))
    -- Names that begin with it are ours.
    AND NOT starts_with(entry.name, %(own_prefix)s)
GROUP BY entry.kind, entry.name, entry.queue, entry.parameters, entry.doc
ORDER BY entry.kind, entry.name, is_live DESC, seen_at DESC
LIMIT %(limit)s
