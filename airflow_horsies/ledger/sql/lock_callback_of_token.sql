-- Locked, so that of two answers at once, and of an answer and the expiry, one comes first.
SELECT
    callback.id::text AS id, callback.outcome, callback.body_digest,
    callback.expires_at > clock_timestamp() AS is_in_time
FROM airflow_horsies.callback_tokens AS token
INNER JOIN airflow_horsies.callbacks AS callback ON callback.id = token.callback_id
WHERE token.digest = %(digest)s::bytea
FOR UPDATE OF callback
