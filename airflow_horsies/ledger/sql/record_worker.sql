-- Every child of a worker records it. Rows of workers that have long ended are removed.
WITH gone AS (
    DELETE FROM airflow_horsies.workers
    WHERE
        seen_at < now() - make_interval(secs => %(keep_seconds)s::double precision)
        AND (hostname, pid) <> (%(hostname)s, %(pid)s)
)
INSERT INTO airflow_horsies.workers (hostname, pid, release, features, seen_at)
VALUES (%(hostname)s, %(pid)s, %(release)s, %(features)s::text[], now())
ON CONFLICT (hostname, pid) DO UPDATE SET
    release = excluded.release, features = excluded.features, seen_at = excluded.seen_at
