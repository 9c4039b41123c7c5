-- The checkpoint of the task or of the item of a chunk itself, else the newest of what was sent before it in the same
-- life of its task instance for the same work, in chunks or alone. A clear begins a new life.
-- Of an item, what was asked for and its round are parts of the row of its chunk.
WITH own AS MATERIALIZED (
    SELECT
        sent.namespace, sent.dag_id, sent.run_id, sent.task_id, sent.map_index, sent.life, sent.position,
        coalesce(item.round, sent.round) AS round, coalesce(item.work, sent.work) AS work,
        coalesce(item.occurrence, sent.occurrence) AS occurrence
    FROM airflow_horsies.submissions AS sent
    LEFT JOIN LATERAL (
        SELECT
            coalesce(chunk.rounds[%(item)s::integer + 1], 1) AS round,
            substring(chunk.works FROM %(item)s::integer * 32 + 1 FOR 32) AS work,
            coalesce(chunk.occurrences[%(item)s::integer + 1], 0) AS occurrence
        FROM airflow_horsies.chunks AS chunk
        WHERE chunk.horsies_task_id = sent.horsies_task_id AND %(item)s::integer >= 0
    ) AS item ON TRUE
    -- What was sent first has nothing before it.
    WHERE sent.horsies_task_id = %(horsies_task_id)s::uuid AND coalesce(item.round, sent.round) > 1
),

earlier AS MATERIALIZED (
    SELECT
        sent.horsies_task_id, sent.round, sent.position, sent.work, sent.occurrence, own.round AS own_round,
        own.position AS own_position, own.work AS own_work, own.occurrence AS own_occurrence
    FROM own
    INNER JOIN airflow_horsies.submissions AS sent USING (namespace, dag_id, run_id, task_id, map_index, life)
    WHERE
        EXISTS (
            SELECT FROM airflow_horsies.checkpoints AS kept
            WHERE kept.horsies_task_id = sent.horsies_task_id
        )
        -- A repair takes the chunks with the items that it keeps over into its own life.
        AND NOT EXISTS (
            SELECT FROM airflow_horsies.submissions AS former
            WHERE former.horsies_task_id = sent.horsies_task_id AND former.life < own.life
        )
),

-- Copies, because each look at a part of a stored value reads it anew. Few chunks have the item.
chunks AS MATERIALIZED (
    SELECT
        earlier.horsies_task_id, earlier.own_round, earlier.own_work, earlier.own_occurrence, chunk.rounds,
        chunk.occurrences, chunk.works || ''::bytea AS works
    FROM earlier
    INNER JOIN airflow_horsies.chunks AS chunk USING (horsies_task_id)
    WHERE position(earlier.own_work IN chunk.works) > 0
)

SELECT found.value
FROM (
    SELECT checkpoint.value, 0 AS distance, checkpoint.saved_at
    FROM airflow_horsies.checkpoints AS checkpoint
    WHERE checkpoint.horsies_task_id = %(horsies_task_id)s::uuid AND checkpoint.item = %(item)s::integer
    UNION ALL
    SELECT checkpoint.value, 1, checkpoint.saved_at
    FROM earlier
    INNER JOIN airflow_horsies.checkpoints AS checkpoint USING (horsies_task_id)
    WHERE
        checkpoint.item = -1
        AND earlier.round < earlier.own_round
        AND earlier.work IS NOT DISTINCT FROM earlier.own_work
        AND earlier.occurrence = earlier.own_occurrence
        -- Without a work, from an older release, only the place tells which item it is.
        AND (earlier.own_work IS NOT NULL OR earlier.position = earlier.own_position)
    UNION ALL
    SELECT checkpoint.value, 1, checkpoint.saved_at
    FROM chunks AS chunk
    INNER JOIN airflow_horsies.checkpoints AS checkpoint USING (horsies_task_id)
    WHERE
        checkpoint.item >= 0
        AND substring(chunk.works FROM checkpoint.item * 32 + 1 FOR 32) = chunk.own_work
        AND coalesce(chunk.occurrences[checkpoint.item + 1], 0) = chunk.own_occurrence
        AND coalesce(chunk.rounds[checkpoint.item + 1], 1) < chunk.own_round
) AS found
ORDER BY found.distance, found.saved_at DESC
LIMIT 1
