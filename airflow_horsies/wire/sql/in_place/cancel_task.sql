-- The function of horsies, since release 0.4.6, locks the row itself.
SELECT outcome, observed_status
FROM horsies_cancel_locked_task(%(id)s::varchar, %(states)s::text[])
