-- The items of the newest life of a task instance at these places.
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
known AS NOT MATERIALIZED (
    SELECT known.position AS place, known.life, known.horsies_task_id, known.is_latest
    FROM airflow_horsies.known_submissions AS known
    WHERE
        known.namespace = %(namespace)s
        AND (%(base_url)s::text = '' OR known.base_url IN (%(base_url)s::text, ''))
        AND known.dag_id = %(dag_id)s
        AND known.run_id = %(run_id)s
        AND known.task_id = %(task_id)s
        AND known.map_index = %(map_index)s
        AND known.life = (SELECT newest.life FROM newest)
),
-- Whether a chunk is the latest takes longer to find than whether it holds a place.
holding AS MATERIALIZED (
    SELECT known.horsies_task_id, known.is_latest, chunk.places, chunk.works, chunk.occurrences
    FROM known
    INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    -- Of one place, only its chunk is taken apart; of many, this would take longer.
    WHERE cardinality(%(places)s::integer[]) > 1 OR chunk.places && %(places)s::integer[]
)
SELECT requested.place, substring(chunk.works FROM requested.ordinal::integer * 32 - 31 FOR 32) AS work,
    coalesce(chunk.occurrences[requested.ordinal], 0) AS occurrence,
    chunk.horsies_task_id::text AS horsies_task_id, requested.ordinal::integer - 1 AS number
FROM holding AS chunk
CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
WHERE requested.place = ANY(%(places)s::integer[]) AND chunk.is_latest
UNION ALL
SELECT known.place, sent.work, sent.occurrence, known.horsies_task_id::text, -1
FROM known
INNER JOIN airflow_horsies.submissions AS sent USING (horsies_task_id, life)
WHERE
    sent.namespace = %(namespace)s
    AND sent.dag_id = %(dag_id)s
    AND sent.run_id = %(run_id)s
    AND sent.task_id = %(task_id)s
    AND sent.map_index = %(map_index)s
    AND known.place = ANY(%(places)s::integer[])
    AND known.is_latest
    AND NOT EXISTS (SELECT FROM airflow_horsies.chunks AS chunk WHERE chunk.horsies_task_id = known.horsies_task_id)
