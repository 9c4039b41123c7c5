-- Times as ISO 8601 in UTC and numbers in full, independent of the settings of the server and the user; and memory for
-- a join of all tasks with all attempts, which would otherwise use files. For this transaction only.
SELECT
    set_config('TimeZone', 'UTC', TRUE) AS timezone,
    set_config('DateStyle', 'ISO, YMD', TRUE) AS datestyle,
    set_config('extra_float_digits', '1', TRUE) AS extra_float_digits,
    set_config(
        'work_mem', greatest(pg_size_bytes('32MB'), pg_size_bytes(current_setting('work_mem'))) / 1024 || 'kB', TRUE
    ) AS work_mem
