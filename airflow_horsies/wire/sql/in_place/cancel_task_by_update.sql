-- For releases before 0.4.6, which have no cancel function. Tasks of workflows are not changed.
WITH before AS (
    SELECT t.id, t.status
    FROM horsies_tasks AS t
    WHERE t.id = %(id)s::text
    FOR UPDATE
),
cancelled AS (
    UPDATE horsies_tasks AS t
    SET
        status = 'CANCELLED',
        error_code = 'TASK_CANCELLED',
        failed_reason = 'Cancelled by airflow-horsies',
        failed_at = now(),
        claimed = FALSE,
        claimed_at = NULL,
        claimed_by_worker_id = NULL,
        claim_expires_at = NULL,
        finalizing_at = NULL,
        finalizing_by_worker_id = NULL,
        updated_at = now()
    FROM before
    WHERE t.id = before.id AND before.status = ANY(%(states)s::text[]) AND NOT t.is_workflow_task
    RETURNING t.id
)
SELECT
    CASE
        WHEN cancelled.id IS NOT NULL THEN 'APPLIED'
        WHEN before.status = 'CANCELLED' THEN 'ALREADY_APPLIED'
        WHEN before.id IS NOT NULL THEN 'SOURCE_STATE_CONFLICT'
        ELSE 'TASK_ABSENT'
    END AS outcome,
    before.status AS observed_status
FROM (SELECT 1) AS one
LEFT JOIN before ON TRUE
LEFT JOIN cancelled ON TRUE
