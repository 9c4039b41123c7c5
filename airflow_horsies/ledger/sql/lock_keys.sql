-- Serialises submissions with the same idempotency key; locked in the order of the keys.
SELECT count(pg_advisory_xact_lock(hashtextextended(encode(digest, 'hex'), 736))) AS locked
FROM (SELECT unnest(%(digests)s::bytea[]) AS digest ORDER BY 1) AS ordered
