SELECT
    clock_timestamp() AS clock,
    current_database()::text AS database,
    current_user::text AS username,
    current_setting('server_version') AS version,
    current_setting('transaction_read_only')::boolean AS is_read_only
