-- Workers that have long ended, all but the newest ones, and what no worker knows any more.
WITH gone AS (
    DELETE FROM airflow_horsies.catalog_workers
    WHERE
        seen_at < now() - make_interval(secs => %(keep_seconds)s::double precision)
        OR seen_at < (
            SELECT kept.seen_at
            FROM airflow_horsies.catalog_workers AS kept
            ORDER BY kept.seen_at DESC
            OFFSET %(keep_workers)s - 1
            LIMIT 1
        )
)

DELETE FROM airflow_horsies.catalog AS entry
WHERE NOT EXISTS (SELECT FROM airflow_horsies.catalog_workers AS worker WHERE worker.digest = entry.digest)
