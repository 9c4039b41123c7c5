-- The submissions of one item of a task instance of this deployment, in chunks or alone, newest first.
WITH holding AS MATERIALIZED (
    SELECT
        known.life, known.horsies_task_id, known.round, known.is_latest, chunk.task_name, chunk.occurrences, chunk.rounds,
        chunk.places,
        -- A copy, because each look at a part of the stored value reads it anew: there may be 10,000 items in 20 lives.
        chunk.works || ''::bytea AS works
    FROM airflow_horsies.known_submissions AS known
    INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    WHERE
        known.namespace = %(namespace)s
        AND known.dag_id = %(dag_id)s
        AND known.run_id = %(run_id)s
        AND known.task_id = %(task_id)s
        AND known.map_index = %(map_index)s
        AND (%(life)s::integer IS NULL OR known.life = %(life)s::integer)
        -- Few chunks have it; an item is then looked for at the places of its size.
        AND position(%(work)s::bytea IN chunk.works) > 0
),
-- Once, and not for each submission.
found AS MATERIALIZED (
    SELECT
        chunk.life, coalesce(chunk.rounds[requested.ordinal], 1) AS item_round, requested.ordinal::integer - 1 AS number,
        chunk.horsies_task_id, chunk.round, chunk.task_name AS item_name, chunk.is_latest AND requested.place >= 0 AS is_wanted
    FROM holding AS chunk
    CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
    WHERE
        substring(chunk.works FROM requested.ordinal::integer * 32 - 31 FOR 32) = %(work)s::bytea
        AND coalesce(chunk.occurrences[requested.ordinal], 0) = %(occurrence)s
    UNION ALL
    SELECT sent.life, sent.round, -1, sent.horsies_task_id, sent.round, sent.task_name, TRUE
    FROM airflow_horsies.submissions AS sent
    WHERE
        sent.namespace = %(namespace)s
        AND sent.dag_id = %(dag_id)s
        AND sent.run_id = %(run_id)s
        AND sent.task_id = %(task_id)s
        AND sent.map_index = %(map_index)s
        AND sent.work = %(work)s::bytea
        AND sent.occurrence = %(occurrence)s
)
SELECT
    known.namespace, known.dag_id, known.run_id, known.task_id, known.map_index, %(position)s::integer AS position,
    known.life, found.item_round AS round, known.try_number, known.horsies_task_id::text AS horsies_task_id,
    known.base_url, found.item_name AS task_name, known.queue_name, known.good_until, known.submitted_at,
    known.is_latest AND found.is_wanted AS is_latest, found.number
FROM found
INNER JOIN airflow_horsies.known_submissions AS known USING (life, horsies_task_id, round)
WHERE
    known.namespace = %(namespace)s
    AND (%(base_url)s::text = '' OR known.base_url IN (%(base_url)s::text, ''))
    AND known.dag_id = %(dag_id)s
    AND known.run_id = %(run_id)s
    AND known.task_id = %(task_id)s
    AND known.map_index = %(map_index)s
    AND (%(life)s::integer IS NULL OR known.life = %(life)s::integer)
    AND (%(wanted_round)s::integer IS NULL OR found.item_round = %(wanted_round)s::integer)
ORDER BY known.life DESC, known.is_latest AND found.is_wanted DESC, found.item_round DESC
LIMIT %(limit)s
