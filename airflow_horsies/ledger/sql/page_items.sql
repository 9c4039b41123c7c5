-- The items of the last submission of a task instance at consecutive places, in chunks or alone.
-- The newest life is asked for first: there may be many lives of many tasks.
WITH newest AS (
    SELECT max(life) AS life
    FROM airflow_horsies.submissions
    WHERE
        namespace = %(namespace)s
        AND dag_id = %(dag_id)s
        AND run_id = %(run_id)s
        AND task_id = %(task_id)s
        AND map_index = %(map_index)s
),
sent AS (
    SELECT known.position, known.life, known.round, known.horsies_task_id
    FROM airflow_horsies.known_submissions AS known
    WHERE
        known.namespace = %(namespace)s
        AND (%(base_url)s::text = '' OR known.base_url IN (%(base_url)s::text, ''))
        AND known.dag_id = %(dag_id)s
        AND known.run_id = %(run_id)s
        AND known.task_id = %(task_id)s
        AND known.map_index = %(map_index)s
        AND known.life = (SELECT newest.life FROM newest)
        AND known.is_latest
)
SELECT
    requested.place, sent.life, coalesce(chunk.rounds[requested.ordinal], 1) AS round,
    sent.horsies_task_id::text AS horsies_task_id, requested.ordinal::integer - 1 AS number
FROM sent
INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
WHERE requested.place BETWEEN %(first)s AND %(last)s
UNION ALL
SELECT sent.position, sent.life, sent.round, sent.horsies_task_id::text, -1
FROM sent
WHERE
    sent.position BETWEEN %(first)s AND %(last)s
    AND NOT EXISTS (SELECT FROM airflow_horsies.chunks AS chunk WHERE chunk.horsies_task_id = sent.horsies_task_id)
ORDER BY place
