-- The same signal, sent before.
SELECT id::text AS id
FROM airflow_horsies.messages
WHERE target = %(target)s::uuid AND name = %(name)s AND dedup_key = %(dedup_key)s
