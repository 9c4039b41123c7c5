-- What apps know: the tasks and workflows of each, with the JSON schema of their parameters. Apps that know the same
-- share the rows, under the digest of all of them.
CREATE TABLE airflow_horsies.catalog (
    digest bytea NOT NULL,
    kind text NOT NULL CHECK (kind IN ('task', 'workflow')),
    name text NOT NULL,
    -- Of the decorator of a task.
    queue text,
    parameters text NOT NULL,
    doc text,
    PRIMARY KEY (digest, kind, name)
);

-- Which worker process runs which app, as the worker itself records it.
CREATE TABLE airflow_horsies.catalog_workers (
    hostname text NOT NULL,
    pid integer NOT NULL,
    digest bytea NOT NULL,
    -- Of airflow-horsies.
    release text NOT NULL,
    queues text[] NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hostname, pid)
);
CREATE INDEX catalog_workers_seen_at ON airflow_horsies.catalog_workers (seen_at);

-- Submissions read both in their transaction. There is no secret in them, and the schema has its own privilege.
GRANT SELECT ON airflow_horsies.catalog, airflow_horsies.catalog_workers TO PUBLIC;
