-- The request for single items with which a life began: recorded in one transaction with the submissions that it kept.
SELECT asked.works, asked.occurrences
FROM airflow_horsies.repairs AS asked
WHERE
    asked.namespace = %(namespace)s
    AND asked.dag_id = %(dag_id)s
    AND asked.run_id = %(run_id)s
    AND asked.task_id = %(task_id)s
    AND asked.map_index = %(map_index)s
    AND asked.taken_life = %(life)s
    AND asked.works IS NOT NULL
    AND EXISTS (
        SELECT FROM airflow_horsies.submissions AS kept
        WHERE
            kept.namespace = asked.namespace
            AND kept.dag_id = asked.dag_id
            AND kept.run_id = asked.run_id
            AND kept.task_id = asked.task_id
            AND kept.map_index = asked.map_index
            AND kept.life = asked.taken_life
            AND kept.submitted_at = asked.taken_at
    )
