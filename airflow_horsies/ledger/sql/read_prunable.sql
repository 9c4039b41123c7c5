-- Ids of tasks that may be past their retention, in the order of their ids.
SELECT ids.horsies_task_id::text AS horsies_task_id
FROM (
    SELECT horsies_task_id
    FROM airflow_horsies.submissions
    WHERE submitted_at < now() - make_interval(secs => %(older_than_seconds)s)
    UNION
    SELECT horsies_task_id
    FROM airflow_horsies.attempts
    WHERE started_at < now() - make_interval(secs => %(older_than_seconds)s)
) AS ids
WHERE %(after)s::uuid IS NULL OR ids.horsies_task_id > %(after)s::uuid
ORDER BY ids.horsies_task_id
LIMIT %(limit)s
