-- What a worker tells may be lost when the server crashes: waiting for its disk would cost each task milliseconds.
SELECT set_config('synchronous_commit', 'off', TRUE)
