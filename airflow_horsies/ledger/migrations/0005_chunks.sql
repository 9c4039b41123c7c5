-- A chunk is a horsies task that runs many items of a batch.
CREATE TABLE airflow_horsies.chunks (
    horsies_task_id uuid PRIMARY KEY,
    -- Of the items, not of the chunk.
    task_name text NOT NULL,
    size integer NOT NULL,
    -- What each item was asked for, 32 bytes an item, and which of several equal items it is; NULL if all are the first.
    works bytea NOT NULL,
    occurrences integer[],
    -- NULL if all are in round 1.
    rounds integer[],
    -- Where each item stands in its batch now; -1 if it is no longer requested or a later round has replaced it.
    places integer[] NOT NULL,
    -- Numbers of items that must not be started any more.
    dropped integer[] NOT NULL DEFAULT '{}'
);

-- How an item ended; written once. An item without a row has the state of its chunk.
CREATE TABLE airflow_horsies.items (
    horsies_task_id uuid NOT NULL,
    number integer NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    -- The attempt of the chunk, and how often the item was tried in it.
    attempt integer NOT NULL,
    tries integer NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    error_code text,
    error_message text,
    -- JSON; NULL unless it completed.
    value text,
    hostname text,
    PRIMARY KEY (horsies_task_id, number)
);

-- What the workers of a release of ours can do; the process is that of horsies_worker_states.
CREATE TABLE airflow_horsies.workers (
    hostname text NOT NULL,
    pid integer NOT NULL,
    release text NOT NULL,
    features text[] NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (hostname, pid)
);

-- The number of the item that wrote the line; NULL outside of items.
ALTER TABLE airflow_horsies.logs ADD COLUMN item integer;

-- As before, but the newest life is found by one index lookup: of a table with one large batch, the planner would read
-- all rows for each row.
CREATE OR REPLACE VIEW airflow_horsies.known_submissions AS
SELECT
    sent.namespace, sent.dag_id, sent.run_id, sent.task_id, sent.map_index,
    CASE WHEN sent.place >= 0 THEN sent.place ELSE sent.position END AS position,
    sent.life, sent.round, sent.try_number, sent.run_started_at, sent.horsies_task_id, sent.base_url, sent.task_name,
    sent.queue_name, sent.good_until, sent.submitted_at, sent.released_at, sent.work, sent.key_digest,
    sent.place IS DISTINCT FROM -1
    AND sent.life = (
        SELECT max(newest.life)
        FROM airflow_horsies.submissions AS newest
        WHERE
            newest.namespace = sent.namespace
            AND newest.dag_id = sent.dag_id
            AND newest.run_id = sent.run_id
            AND newest.task_id = sent.task_id
            AND newest.map_index = sent.map_index
    )
    AND NOT EXISTS (
        SELECT FROM airflow_horsies.submissions AS newer
        WHERE
            newer.namespace = sent.namespace
            AND newer.dag_id = sent.dag_id
            AND newer.run_id = sent.run_id
            AND newer.task_id = sent.task_id
            AND newer.map_index = sent.map_index
            AND newer.life = sent.life
            AND newer.position = sent.position
            AND newer.round > sent.round
    ) AS is_latest
FROM airflow_horsies.submissions AS sent;
