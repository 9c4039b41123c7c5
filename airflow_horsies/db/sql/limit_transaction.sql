-- For this transaction only, because a pooler gives the connection to others. Stricter settings take precedence.
SELECT set_config(
    settings.name,
    CASE WHEN settings.current > 0 THEN least(settings.current, settings.wanted) ELSE settings.wanted END || 'ms',
    true
)
FROM (
    SELECT
        wanted.name,
        wanted.milliseconds AS wanted,
        round(extract(EPOCH FROM current_setting(wanted.name)::interval) * 1000)::bigint AS current
    FROM (VALUES
        ('lock_timeout', %(lock_milliseconds)s::bigint),
        ('statement_timeout', %(statement_milliseconds)s::bigint),
        ('idle_in_transaction_session_timeout', %(idle_milliseconds)s::bigint)
    ) AS wanted (name, milliseconds)
) AS settings
UNION ALL
-- A time at the end of the year 9999 in UTC has no Python date in a time zone further east.
SELECT set_config('TimeZone', 'UTC', true)
