-- What was submitted. Of a workflow, horsies_task_id is its id in horsies_workflows.
ALTER TABLE airflow_horsies.submissions
    ADD COLUMN kind text NOT NULL DEFAULT 'TASK' CHECK (kind IN ('TASK', 'WORKFLOW'));

-- A release that does not know workflows finds no task of their ids. It must not take that for a task that is past its
-- retention and prune the record, nor take a request to cancel one and drop it. Only a release that knows them sets this
-- for its transaction. Deletes of plain tasks never call the functions.
CREATE FUNCTION airflow_horsies.keep_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END
$$;
CREATE TRIGGER keep_workflows BEFORE DELETE ON airflow_horsies.submissions
FOR EACH ROW
WHEN (old.kind = 'WORKFLOW' AND current_setting('airflow_horsies.knows_workflows', TRUE) IS DISTINCT FROM 'on')
EXECUTE FUNCTION airflow_horsies.keep_row();

CREATE FUNCTION airflow_horsies.keep_request_of_workflow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM airflow_horsies.submissions AS sent
        WHERE sent.horsies_task_id = old.horsies_task_id AND sent.kind = 'WORKFLOW'
    ) THEN
        RETURN NULL;
    END IF;
    RETURN old;
END
$$;
CREATE TRIGGER keep_workflows BEFORE DELETE ON airflow_horsies.cancel_requests
FOR EACH ROW
WHEN (current_setting('airflow_horsies.knows_workflows', TRUE) IS DISTINCT FROM 'on')
EXECUTE FUNCTION airflow_horsies.keep_request_of_workflow();

-- As before, with the kind.
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
    ) AS is_latest,
    sent.kind
FROM airflow_horsies.submissions AS sent;
