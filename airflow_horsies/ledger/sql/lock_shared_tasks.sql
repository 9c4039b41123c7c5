-- Who lets go of a shared task and who takes it up come one after the other, in the order of the ids.
SELECT count(pg_advisory_xact_lock(hashtextextended(id, 735))) AS locked
FROM (SELECT unnest(%(ids)s::text[]) AS id ORDER BY 1) AS ordered
