-- Serialises every submission of one task instance, so that what is read here still holds at the insert. The server
-- may take the connection of a host that lost its power for alive for hours: it is not to hold the lock for so long.
SELECT
    set_config('idle_in_transaction_session_timeout', %(idle_seconds)s::integer || 's', TRUE) AS idle,
    pg_advisory_xact_lock(hashtextextended(%(key)s::text, 733)) AS locked
