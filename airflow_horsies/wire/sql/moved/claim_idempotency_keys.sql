-- Must run before the rows are inserted and in the same transaction; a concurrent first claim raises 23505.
SELECT new.id::text AS id, claim.outcome, claim.task_id::text AS task_id
FROM unnest(
    %(ids)s::uuid[], %(idempotency_digests)s::bytea[], %(command_fingerprints)s::bytea[]
) AS new (id, digest, fingerprint)
CROSS JOIN LATERAL horsies_key_reservation_claim(
    new.digest, 1::smallint, make_interval(secs => %(window_seconds)s), 1::smallint, new.fingerprint, new.id
) AS claim
