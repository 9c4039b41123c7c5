-- Two senders of the same id must not both find it unused: in the newer generation a row whose id is already in the
-- history can never be finished and occupies a slot of its worker. Buckets limit the number of locks.
SELECT pg_advisory_xact_lock(%(lock_space)s::integer, bucket)
FROM unnest(%(buckets)s::integer[]) AS bucket
