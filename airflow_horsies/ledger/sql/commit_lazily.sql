-- A report of a worker may be lost if the server crashes: waiting for the disk would cost every task milliseconds.
SELECT set_config('synchronous_commit', 'off', TRUE)
