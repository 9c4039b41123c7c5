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
