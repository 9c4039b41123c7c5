-- For the transaction of one page: it gives up rather than have others wait, and what it removed may come back.
SELECT
    set_config('lock_timeout', '5s', TRUE),
    set_config('statement_timeout', '60s', TRUE),
    set_config('synchronous_commit', 'off', TRUE)
