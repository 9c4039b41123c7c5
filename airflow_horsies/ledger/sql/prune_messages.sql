-- Of tasks and workflows that horsies no longer keeps. What was written meanwhile is kept.
WITH gone AS (SELECT unnest(%(gone)s::uuid[]) AS id),

parkings AS (
    DELETE FROM airflow_horsies.parkings
    USING gone
    WHERE horsies_task_id = gone.id AND parked_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
),

checkpoints AS (
    DELETE FROM airflow_horsies.checkpoints
    USING gone
    WHERE horsies_task_id = gone.id AND saved_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
)

DELETE FROM airflow_horsies.messages
USING gone
WHERE
    messages.target = gone.id
    AND coalesce(messages.consumed_at, messages.sent_at)
    < now() - make_interval(secs => %(older_than_seconds)s::double precision)
