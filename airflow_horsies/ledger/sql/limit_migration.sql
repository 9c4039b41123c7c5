-- Everybody who asks for a table queues behind a migration that waits for it, so it does not wait for long, and comes
-- again. What it does then may take as long as it takes: cut short, it would have to be done once more.
SELECT
    set_config('lock_timeout', '3s', TRUE),
    set_config('statement_timeout', '0', TRUE)
