-- A submission or an attempt that was recorded meanwhile is kept.
WITH gone AS (SELECT unnest(%(ids)s::uuid[]) AS id),
attempts AS (
    DELETE FROM airflow_horsies.attempts
    USING gone
    WHERE horsies_task_id = gone.id AND started_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
),
chunks AS (
    DELETE FROM airflow_horsies.chunks
    USING gone
    WHERE
        horsies_task_id = gone.id
        AND NOT EXISTS (
            SELECT FROM airflow_horsies.submissions
            WHERE
                submissions.horsies_task_id = gone.id
                AND submitted_at >= now() - make_interval(secs => %(older_than_seconds)s::double precision)
        )
),
progress AS (DELETE FROM airflow_horsies.progress USING gone WHERE horsies_task_id = gone.id),
cancel_requests AS (DELETE FROM airflow_horsies.cancel_requests USING gone WHERE horsies_task_id = gone.id),
signals AS (DELETE FROM airflow_horsies.signals USING gone WHERE horsies_task_id = gone.id),
submissions AS (
    DELETE FROM airflow_horsies.submissions
    USING gone
    WHERE horsies_task_id = gone.id AND submitted_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
    RETURNING 1
)
SELECT count(*) AS pruned FROM submissions
