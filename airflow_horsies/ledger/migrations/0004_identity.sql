-- The oldest version of these tables whose release may still submit; cancelling is never refused. Altered first: who
-- cancels reads the version and then the other tables.
ALTER TABLE airflow_horsies.migrations ADD COLUMN min_writer integer NOT NULL DEFAULT 1;
ALTER TABLE airflow_horsies.migrations ALTER COLUMN min_writer SET DEFAULT 4;

-- A submission is told apart by what Airflow records of its DAG run and of clears, and by what was asked for.
ALTER TABLE airflow_horsies.submissions
    -- Identifies the DAG run where Airflow lets us keep a value with it; a run made again has another.
    ADD COLUMN run_key text,
    ADD COLUMN clear_number integer,
    ADD COLUMN max_tries integer,
    -- What was asked for, and which of several equal items it is.
    ADD COLUMN work bytea,
    ADD COLUMN occurrence integer NOT NULL DEFAULT 0,
    -- The newest try that asked for the items of the life, where that try sent nothing: kept with one of them.
    ADD COLUMN seen_try integer,
    -- Of the idempotency key under which it was asked for.
    ADD COLUMN key_digest bytea,
    -- Where the item stands in its batch now: NULL as at first, -1 where it is no longer asked for.
    ADD COLUMN place integer,
    -- Somebody else had sent the task under the same idempotency key.
    ADD COLUMN taken_up boolean NOT NULL DEFAULT FALSE,
    -- The task instance no longer wants the task, which others may share.
    ADD COLUMN released_at timestamptz,
    DROP CONSTRAINT submissions_pkey,
    ADD PRIMARY KEY (namespace, dag_id, run_id, task_id, map_index, life, position, round);

-- One address, one deployment.
UPDATE airflow_horsies.submissions SET base_url = rtrim(base_url, '/') WHERE base_url LIKE '%/';

CREATE INDEX submissions_key ON airflow_horsies.submissions (key_digest) WHERE key_digest IS NOT NULL;

-- Every reader asks here what the latest submission is: of the newest life, each item's newest round, if it is still
-- asked for.
CREATE VIEW airflow_horsies.known_submissions AS
SELECT
    sent.namespace, sent.dag_id, sent.run_id, sent.task_id, sent.map_index,
    CASE WHEN sent.place >= 0 THEN sent.place ELSE sent.position END AS position,
    sent.life, sent.round, sent.try_number, sent.run_started_at, sent.horsies_task_id, sent.base_url, sent.task_name,
    sent.queue_name, sent.good_until, sent.submitted_at, sent.released_at, sent.work, sent.key_digest,
    sent.place IS DISTINCT FROM -1
    AND NOT EXISTS (
        SELECT FROM airflow_horsies.submissions AS newer
        WHERE
            newer.namespace = sent.namespace
            AND newer.dag_id = sent.dag_id
            AND newer.run_id = sent.run_id
            AND newer.task_id = sent.task_id
            AND newer.map_index = sent.map_index
            AND newer.life > sent.life
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

-- Tasks to cancel that could not be cancelled when that was asked for; carried out by whoever comes next.
CREATE TABLE airflow_horsies.cancel_requests (
    horsies_task_id uuid PRIMARY KEY,
    requested_at timestamptz NOT NULL DEFAULT now()
);
