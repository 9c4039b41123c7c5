-- Every child of a worker records it, with the entries if they are missing. Whether they were there is seen as of the
-- start of the statement; sorted, because two apps that know the same may record them at once.
WITH worker AS (
    INSERT INTO airflow_horsies.catalog_workers (hostname, pid, digest, release, queues, seen_at)
    VALUES (%(hostname)s, %(pid)s, %(digest)s, %(release)s, %(queues)s::text[], now())
    ON CONFLICT (hostname, pid) DO UPDATE SET
        digest = excluded.digest, release = excluded.release, queues = excluded.queues, seen_at = excluded.seen_at
),

added AS (
    INSERT INTO airflow_horsies.catalog (digest, kind, name, queue, parameters, doc)
    SELECT %(digest)s, entry.kind, entry.name, entry.queue, entry.parameters, entry.doc
    FROM json_to_recordset(%(entries)s::json) AS entry (kind text, name text, queue text, parameters text, doc text)
    ORDER BY entry.kind, entry.name
    ON CONFLICT DO NOTHING
)

SELECT EXISTS (SELECT FROM airflow_horsies.catalog AS entry WHERE entry.digest = %(digest)s) AS was_known
