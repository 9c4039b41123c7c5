-- All users of a table queue behind a migration that waits for it, so the wait is short and the migration is retried.
-- The migration itself has no time limit: after an interruption it would have to start again.
SELECT
    set_config('lock_timeout', '3s', TRUE),
    set_config('statement_timeout', '0', TRUE)
