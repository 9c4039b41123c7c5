-- Requests to run again only what did not complete, for the next clear of a task instance.
CREATE TABLE airflow_horsies.repairs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    dag_id text NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    map_index integer NOT NULL,
    base_url text NOT NULL,
    -- The newest life at the request, whose completed items are kept.
    life integer NOT NULL,
    -- Of the DAG run at the request: the request is for the next clear and for no later one.
    clear_number integer NOT NULL,
    run_started_at timestamptz,
    -- The items to run again, as in the table chunks; NULL runs all that did not complete. Not kept of a request that
    -- was replaced or withdrawn.
    works bytea,
    occurrences integer[],
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    -- When a submission closed the request, and the life that took it; NULL if it was void.
    taken_at timestamptz,
    taken_life integer
);
CREATE INDEX repairs_task_instance ON airflow_horsies.repairs (namespace, dag_id, run_id, task_id, map_index);
