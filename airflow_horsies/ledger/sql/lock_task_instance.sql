-- Serialises every submission of one task instance, so that what is read here still holds at the insert.
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s::text, 733))
