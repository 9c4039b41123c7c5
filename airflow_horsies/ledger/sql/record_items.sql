-- An outcome that was written before is kept. Call it only while the transaction holds the claim of the chunk.
INSERT INTO airflow_horsies.items (
    horsies_task_id, number, outcome, attempt, tries, started_at, finished_at, error_code, error_message, value, hostname
)
SELECT
    %(horsies_task_id)s::uuid, ended.number, ended.outcome, ended.attempt, ended.tries, ended.started_at,
    ended.finished_at, ended.error_code, ended.error_message, ended.value, ended.hostname
FROM json_to_recordset(%(items)s::json) AS ended (
    number integer, outcome text, attempt integer, tries integer, started_at timestamptz, finished_at timestamptz,
    error_code text, error_message text, value text, hostname text
)
ON CONFLICT (horsies_task_id, number) DO NOTHING
