-- Times as ISO 8601 in UTC, and numbers in full, whatever the server or the user is set to; for this transaction only.
SELECT
    set_config('TimeZone', 'UTC', TRUE) AS timezone,
    set_config('DateStyle', 'ISO, YMD', TRUE) AS datestyle,
    set_config('extra_float_digits', '1', TRUE) AS extra_float_digits
