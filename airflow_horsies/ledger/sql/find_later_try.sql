-- Whether a later try of the life that sent one of these tasks has requested them.
SELECT EXISTS (
    SELECT
    FROM airflow_horsies.submissions AS ours
    INNER JOIN airflow_horsies.submissions AS later
        USING (namespace, dag_id, run_id, task_id, map_index, life)
    WHERE
        ours.namespace = %(namespace)s
        AND ours.dag_id = %(dag_id)s
        AND ours.run_id = %(run_id)s
        AND ours.task_id = %(task_id)s
        AND ours.map_index = %(map_index)s
        AND ours.horsies_task_id = %(horsies_task_id)s::uuid
        AND greatest(later.try_number, later.seen_try) > %(try_number)s
) AS is_there
