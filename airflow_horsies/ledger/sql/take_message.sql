-- The oldest message that nobody has consumed. Call it only while the transaction holds the locks of the signal and the
-- claim of the task.
UPDATE airflow_horsies.messages
SET
    consumed_by = %(horsies_task_id)s::uuid, consumed_attempt = %(attempt)s, consumed_at = now(),
    occurrence = %(occurrence)s
WHERE id = (
    SELECT waiting.id
    FROM airflow_horsies.messages AS waiting
    WHERE waiting.target = ANY(%(targets)s::uuid[]) AND waiting.name = %(name)s AND waiting.consumed_by IS NULL
    ORDER BY waiting.number
    LIMIT 1
)
RETURNING payload
