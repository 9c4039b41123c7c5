-- A limited number of lines of removed tasks, and of lines that are too old. Deleted by ctid, which is safe because
-- lines are never updated.
WITH pruned AS (
    DELETE FROM airflow_horsies.logs
    WHERE
        ctid = ANY(ARRAY(
            SELECT lines.ctid
            FROM airflow_horsies.logs AS lines
            WHERE lines.horsies_task_id = ANY(%(gone)s::uuid[])
            UNION ALL
            SELECT lines.ctid
            FROM airflow_horsies.attempts
            INNER JOIN airflow_horsies.logs AS lines
                ON lines.horsies_task_id = attempts.horsies_task_id AND lines.attempt = attempts.attempt
            WHERE
                attempts.horsies_task_id = ANY(%(ids)s::uuid[])
                AND attempts.horsies_task_id <> ALL(%(gone)s::uuid[])
                AND attempts.started_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
                AND lines.logged_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
            LIMIT %(limit)s
        ))
    RETURNING 1
)

SELECT count(*) AS pruned FROM pruned
