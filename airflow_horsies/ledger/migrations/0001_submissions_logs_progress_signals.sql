CREATE SCHEMA IF NOT EXISTS airflow_horsies;

CREATE TABLE airflow_horsies.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- Which Airflow task instance sent which horsies task.
CREATE TABLE airflow_horsies.submissions (
    namespace text NOT NULL,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    map_index integer NOT NULL,
    position integer NOT NULL,
    life integer NOT NULL,
    round integer NOT NULL,
    try_number integer NOT NULL,
    -- When the DAG run began: a run that was deleted and made again under the same id began anew.
    run_started_at timestamptz,
    horsies_task_id uuid NOT NULL,
    base_url text NOT NULL,
    task_name text NOT NULL,
    queue_name text NOT NULL,
    good_until timestamptz,
    submitted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, dag_id, run_id, task_id, map_index, position, life, round)
);
CREATE INDEX submissions_horsies_task ON airflow_horsies.submissions (horsies_task_id);
CREATE INDEX submissions_submitted_at ON airflow_horsies.submissions (submitted_at);

-- Lines of each attempt, in the order they were written.
CREATE TABLE airflow_horsies.logs (
    horsies_task_id uuid NOT NULL,
    attempt integer NOT NULL,
    line_number integer NOT NULL,
    logged_at timestamptz NOT NULL,
    level text NOT NULL,
    line text NOT NULL,
    PRIMARY KEY (horsies_task_id, attempt, line_number)
);

-- The last progress of each running task.
CREATE TABLE airflow_horsies.progress (
    horsies_task_id uuid PRIMARY KEY,
    attempt integer NOT NULL,
    done bigint NOT NULL,
    total bigint,
    stage text,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Requests to a running task; appended, never changed.
CREATE TABLE airflow_horsies.signals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    horsies_task_id uuid NOT NULL,
    signal text NOT NULL CHECK (signal IN ('CANCEL')),
    requested_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX signals_horsies_task ON airflow_horsies.signals (horsies_task_id);
