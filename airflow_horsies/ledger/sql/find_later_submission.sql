-- Whether a later life of the task instance, or a later try of this life, has submitted.
SELECT EXISTS (
    SELECT
    FROM airflow_horsies.submissions
    WHERE
        namespace = %(namespace)s
        AND dag_id = %(dag_id)s
        AND run_id = %(run_id)s
        AND task_id = %(task_id)s
        AND map_index = %(map_index)s
        AND life >= %(life)s::integer
        AND (life > %(life)s::integer OR greatest(try_number, seen_try) > %(try_number)s::integer)
) AS is_there
