-- Many processes meet a new database at once; one migrates while the others wait, then find it done.
SELECT pg_advisory_xact_lock(734, 0)
