-- For the transaction of one page: it gives up rather than block others, and its removals may be lost in a crash.
SELECT
    set_config('lock_timeout', '5s', TRUE),
    set_config('statement_timeout', '60s', TRUE),
    set_config('synchronous_commit', 'off', TRUE)
