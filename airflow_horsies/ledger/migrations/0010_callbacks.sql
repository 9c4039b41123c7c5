-- Callbacks that task instances wait for. An outside party answers each of them once.
CREATE TABLE airflow_horsies.callbacks (
    id uuid PRIMARY KEY,
    namespace text NOT NULL,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    map_index integer NOT NULL,
    life integer NOT NULL,
    -- The try that opened it, or a later number. In a life, another one follows a callback that failed, expired or is
    -- void.
    number integer NOT NULL,
    -- Where the outside party reaches the Airflow that waits.
    base_url text NOT NULL,
    -- The task that hands out its address; no other gets a token.
    horsies_task_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    -- A heartbeat moves expires_at this far away, up to last_expires_at.
    extended_by_seconds double precision NOT NULL,
    last_expires_at timestamptz NOT NULL,
    heartbeat_at timestamptz,
    heartbeats integer NOT NULL DEFAULT 0,
    completed_at timestamptz,
    outcome text CHECK (outcome IN ('COMPLETED', 'FAILED', 'EXPIRED', 'VOID')),
    -- The JSON of the answer as it came, and the digest of its value.
    body text CHECK (octet_length(body) <= 1048576),
    body_digest bytea,
    answered_from text,
    CHECK ((outcome IS NULL) = (completed_at IS NULL)),
    UNIQUE (namespace, dag_id, run_id, task_id, map_index, life, number)
);
CREATE INDEX callbacks_expires_at ON airflow_horsies.callbacks (expires_at);

-- The tokens that were handed out, by the SHA-256 of each. No token is stored. All tokens of a callback are valid until
-- it has an outcome: each attempt of the task that hands them out makes its own.
CREATE TABLE airflow_horsies.callback_tokens (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    callback_id uuid NOT NULL REFERENCES airflow_horsies.callbacks (id) ON DELETE CASCADE,
    minted_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX callback_tokens_callback ON airflow_horsies.callback_tokens (callback_id, minted_at);
