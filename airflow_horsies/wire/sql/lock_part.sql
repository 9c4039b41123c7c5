-- Marks this part of a read as being read, for the keeper of the snapshot; held until the end of the transaction.
SELECT pg_advisory_xact_lock_shared(%(read_key)s::integer, %(part)s::integer) AS locked
