-- Upstream's function, in releases from 0.4.6 on, locks the row itself.
SELECT outcome, observed_status
FROM horsies_cancel_locked_task(%(id)s::varchar, %(states)s::text[])
