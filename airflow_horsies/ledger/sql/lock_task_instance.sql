-- Serialises the submissions of one task instance, so that what is read is still true at the insert. The server may
-- keep the connection of a host without power for hours; the idle limit releases its lock earlier.
SELECT
    set_config('idle_in_transaction_session_timeout', %(idle_seconds)s::integer || 's', TRUE) AS idle,
    pg_advisory_xact_lock(hashtextextended(%(key)s::text, 733)) AS locked
