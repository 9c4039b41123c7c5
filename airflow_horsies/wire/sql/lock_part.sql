-- Tells the keeper of a snapshot that this part of a read is being read; held to the end of the transaction.
SELECT pg_advisory_xact_lock_shared(%(read_key)s::integer, %(part)s::integer) AS locked
