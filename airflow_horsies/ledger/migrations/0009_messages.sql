-- Signals: each is stored once, and consumed once. A later attempt of the task that consumed it sees it again.
CREATE TABLE airflow_horsies.messages (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The order of the messages of a target.
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- A task, or a workflow, whose tasks and sub-workflows receive it.
    target uuid NOT NULL,
    name text NOT NULL,
    -- JSON.
    payload text NOT NULL CHECK (octet_length(payload) <= 262144),
    dedup_key text,
    sent_at timestamptz NOT NULL DEFAULT now(),
    sent_by text NOT NULL,
    consumed_by uuid,
    consumed_attempt integer,
    consumed_at timestamptz,
    -- Which message of that name it was to the task.
    occurrence integer,
    UNIQUE (target, name, dedup_key)
);
CREATE INDEX messages_waiting ON airflow_horsies.messages (target, name, number) WHERE consumed_by IS NULL;
CREATE UNIQUE INDEX messages_consumed ON airflow_horsies.messages (consumed_by, name, occurrence)
WHERE consumed_by IS NOT NULL;

-- The waits of tasks that park: what they wait for, and until when. They hold no worker meanwhile.
CREATE TABLE airflow_horsies.parkings (
    horsies_task_id uuid NOT NULL,
    name text NOT NULL,
    occurrence integer NOT NULL,
    -- The task itself, its workflow and all workflows around that.
    targets uuid[] NOT NULL,
    -- The last attempt that parked here, and how many did.
    attempt integer NOT NULL,
    times integer NOT NULL DEFAULT 0,
    parked_at timestamptz NOT NULL DEFAULT now(),
    -- Set by the first attempt; NULL if the wait has no end.
    due_at timestamptz,
    PRIMARY KEY (horsies_task_id, name, occurrence)
);
CREATE INDEX parkings_targets ON airflow_horsies.parkings USING gin (targets);

-- The last value that a task kept for its next attempt, or for the next task of the same life.
CREATE TABLE airflow_horsies.checkpoints (
    horsies_task_id uuid NOT NULL,
    -- The number of the item of a chunk; -1 for a task that is no chunk.
    item integer NOT NULL DEFAULT -1,
    attempt integer NOT NULL,
    -- JSON.
    value text NOT NULL CHECK (octet_length(value) <= 1048576),
    saved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (horsies_task_id, item)
);
