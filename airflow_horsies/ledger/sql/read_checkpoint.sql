-- The checkpoint of the task itself, else the newest of the tasks that were sent before it in the same life of its task
-- instance for the same work. A clear begins a new life.
SELECT found.value
FROM (
    SELECT checkpoint.value, 0 AS distance, checkpoint.saved_at
    FROM airflow_horsies.checkpoints AS checkpoint
    WHERE checkpoint.horsies_task_id = %(horsies_task_id)s::uuid AND checkpoint.item = -1
    UNION ALL
    SELECT checkpoint.value, 1, checkpoint.saved_at
    FROM airflow_horsies.submissions AS own
    INNER JOIN airflow_horsies.submissions AS earlier
        ON
            earlier.namespace = own.namespace
            AND earlier.dag_id = own.dag_id
            AND earlier.run_id = own.run_id
            AND earlier.task_id = own.task_id
            AND earlier.map_index = own.map_index
            AND earlier.life = own.life
            AND earlier.position = own.position
            AND earlier.round < own.round
            AND earlier.work IS NOT DISTINCT FROM own.work
            AND earlier.occurrence = own.occurrence
    INNER JOIN airflow_horsies.checkpoints AS checkpoint
        ON checkpoint.horsies_task_id = earlier.horsies_task_id AND checkpoint.item = -1
    WHERE own.horsies_task_id = %(horsies_task_id)s::uuid
) AS found
ORDER BY found.distance, found.saved_at DESC
LIMIT 1
