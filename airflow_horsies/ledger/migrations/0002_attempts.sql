-- What a worker says of each attempt it runs, also of a cancelled one, of which horsies keeps no record.
-- An attempt without an end was killed, or still runs.
CREATE TABLE airflow_horsies.attempts (
    horsies_task_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_id text NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    outcome text CHECK (outcome IN ('COMPLETED', 'FAILED', 'CANCELLED')),
    error_code text,
    error_message text,
    metrics text,
    PRIMARY KEY (horsies_task_id, attempt)
);
CREATE INDEX attempts_started_at ON airflow_horsies.attempts (started_at);
