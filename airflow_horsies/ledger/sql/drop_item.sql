-- An item of a chunk that must not be started any more, unless it has ended. Returns whether another requested item of
-- the chunk is left to run.
WITH dropped AS (
    UPDATE airflow_horsies.chunks AS chunk
    SET dropped = array_append(array_remove(chunk.dropped, %(number)s::integer), %(number)s::integer)
    WHERE
        chunk.horsies_task_id = %(horsies_task_id)s::uuid
        AND NOT EXISTS (
            SELECT FROM airflow_horsies.items AS ended
            WHERE ended.horsies_task_id = chunk.horsies_task_id AND ended.number = %(number)s::integer
        )
    RETURNING chunk.horsies_task_id, chunk.places, chunk.dropped
)
SELECT
    EXISTS (
        SELECT
        FROM unnest(dropped.places) WITH ORDINALITY AS requested (place, ordinal)
        WHERE
            requested.place >= 0
            AND requested.ordinal - 1 <> ALL(dropped.dropped)
            AND NOT EXISTS (
                SELECT FROM airflow_horsies.items AS ended
                WHERE ended.horsies_task_id = dropped.horsies_task_id AND ended.number = requested.ordinal - 1
            )
    ) AS others_are_open
FROM dropped
