-- Whether a later try of a life that requested one of these tasks has requested them, or a later life has.
WITH ours AS (
    SELECT DISTINCT sent.life
    FROM airflow_horsies.submissions AS sent
    WHERE
        sent.namespace = %(namespace)s
        AND sent.dag_id = %(dag_id)s
        AND sent.run_id = %(run_id)s
        AND sent.task_id = %(task_id)s
        AND sent.map_index = %(map_index)s
        AND sent.horsies_task_id = ANY(%(ids)s::uuid[])
)
SELECT
    EXISTS (SELECT FROM ours WHERE ours.life > %(life)s::integer)
    OR EXISTS (
        SELECT
        FROM airflow_horsies.submissions AS later
        WHERE
            later.namespace = %(namespace)s
            AND later.dag_id = %(dag_id)s
            AND later.run_id = %(run_id)s
            AND later.task_id = %(task_id)s
            AND later.map_index = %(map_index)s
            AND later.life IN (SELECT ours.life FROM ours)
            AND greatest(later.try_number, later.seen_try) > %(try_number)s::integer
    ) AS is_there
