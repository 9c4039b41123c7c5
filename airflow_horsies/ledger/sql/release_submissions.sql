-- This task instance no longer needs these tasks.
UPDATE airflow_horsies.submissions
SET released_at = now()
WHERE
    namespace = %(namespace)s
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND horsies_task_id = ANY(%(ids)s::uuid[])
    AND released_at IS NULL
