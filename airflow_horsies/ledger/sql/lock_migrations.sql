-- Many processes may start on a new database at once: one migrates while the others wait.
SELECT pg_advisory_xact_lock(734, 0)
