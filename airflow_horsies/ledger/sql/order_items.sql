-- A page of the items of the last submission of a task instance in the order of one column. An item of a chunk without
-- an outcome has the state of its chunk. NULL comes last in both directions; the place breaks ties.
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
alone AS (
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
        AND NOT EXISTS (
            SELECT FROM airflow_horsies.chunks AS chunk WHERE chunk.horsies_task_id = known.horsies_task_id
        )
),
task AS (
    SELECT id, status, error_code, hostname, attempts, seconds
    FROM json_to_recordset(%(tasks)s::json) AS task (
        id uuid, status text, error_code text, hostname text, attempts integer, seconds double precision
    )
),
item AS (
    SELECT
        requested.place, (SELECT newest.life FROM newest) AS life,
        coalesce(chunk.rounds[requested.ordinal], 1) AS round, chunk.horsies_task_id,
        requested.ordinal::integer - 1 AS number,
        coalesce(ended.outcome, task.status) AS state,
        ended.tries AS attempts,
        extract(EPOCH FROM ended.finished_at - ended.started_at) AS seconds,
        CASE WHEN ended.outcome IS NULL THEN task.error_code ELSE ended.error_code END AS error_code,
        coalesce(ended.hostname, task.hostname) AS hostname
    -- By their ids, whose number the planner knows: it would look up the items one by one.
    FROM unnest(%(ids)s::uuid[]) AS given (id)
    INNER JOIN airflow_horsies.chunks AS chunk ON chunk.horsies_task_id = given.id
    CROSS JOIN LATERAL unnest(chunk.places) WITH ORDINALITY AS requested (place, ordinal)
    LEFT JOIN task ON task.id = given.id
    LEFT JOIN airflow_horsies.items AS ended
        ON ended.horsies_task_id = given.id AND ended.number = requested.ordinal - 1
    WHERE
        requested.place >= 0
        -- Of another state, only items without an outcome, and no chunk of which all have one, are taken apart.
        AND (
            coalesce(%(state)s::text, 'COMPLETED') = 'COMPLETED'
            OR (
                task.status = %(state)s::text
                AND ended.outcome IS NULL
                AND chunk.size > (
                    SELECT count(*) FROM airflow_horsies.items AS written WHERE written.horsies_task_id = given.id
                )
            )
        )
    UNION ALL
    SELECT
        chunk.places[ended.number + 1], (SELECT newest.life FROM newest),
        coalesce(chunk.rounds[ended.number + 1], 1), chunk.horsies_task_id, ended.number, ended.outcome, ended.tries,
        extract(EPOCH FROM ended.finished_at - ended.started_at), ended.error_code,
        coalesce(ended.hostname, task.hostname)
    FROM unnest(%(ids)s::uuid[]) AS given (id)
    INNER JOIN airflow_horsies.chunks AS chunk ON chunk.horsies_task_id = given.id
    INNER JOIN airflow_horsies.items AS ended ON ended.horsies_task_id = given.id
    LEFT JOIN task ON task.id = given.id
    WHERE
        ended.outcome = %(state)s::text
        AND %(state)s::text <> 'COMPLETED'
        AND chunk.places[ended.number + 1] >= 0
        -- All items of a completed chunk have completed.
        AND task.status IS DISTINCT FROM 'COMPLETED'
    UNION ALL
    SELECT
        alone.position, alone.life, alone.round, alone.horsies_task_id, -1, task.status, task.attempts, task.seconds,
        task.error_code, task.hostname
    FROM alone
    LEFT JOIN task ON task.id = alone.horsies_task_id
)
SELECT item.place, item.life, item.round, item.horsies_task_id::text AS horsies_task_id, item.number
FROM item
CROSS JOIN LATERAL (
    SELECT
        CASE %(sort)s::text
            WHEN 'position' THEN item.place WHEN 'attempts' THEN item.attempts WHEN 'duration' THEN item.seconds
        END::double precision * %(direction)s::integer AS figure,
        CASE %(sort)s::text
            WHEN 'state' THEN item.state WHEN 'error_code' THEN item.error_code WHEN 'hostname' THEN item.hostname
        END COLLATE "C" AS word
) AS compared
WHERE %(state)s::text IS NULL OR item.state = %(state)s::text
ORDER BY
    compared.figure IS NULL AND compared.word IS NULL,
    compared.figure,
    CASE WHEN %(direction)s::integer > 0 THEN compared.word END,
    CASE WHEN %(direction)s::integer < 0 THEN compared.word END DESC,
    item.place * CASE WHEN compared.figure IS NULL AND compared.word IS NULL THEN 1 ELSE %(direction)s::integer END
LIMIT %(limit)s OFFSET %(offset)s
