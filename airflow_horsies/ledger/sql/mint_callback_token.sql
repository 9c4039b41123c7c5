-- Only for the task that hands out the address, and only while somebody waits. Locked, so that a callback that has just
-- been voided gets no token.
WITH callback AS (
    SELECT id, base_url
    FROM airflow_horsies.callbacks
    WHERE
        id = %(callback_id)s::uuid
        AND horsies_task_id = %(horsies_task_id)s::uuid
        AND outcome IS NULL
        AND expires_at > clock_timestamp()
    FOR UPDATE
), minted AS (
    INSERT INTO airflow_horsies.callback_tokens (digest, callback_id)
    SELECT %(digest)s::bytea, id
    FROM callback
), oldest AS (
    DELETE FROM airflow_horsies.callback_tokens
    WHERE digest IN (
        SELECT token.digest
        FROM airflow_horsies.callback_tokens AS token
        INNER JOIN callback ON token.callback_id = callback.id
        ORDER BY token.minted_at DESC
        OFFSET %(kept)s::integer
    )
)
SELECT base_url
FROM callback
