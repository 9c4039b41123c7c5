-- A report of the same name and period is replaced.
INSERT INTO airflow_horsies.reports (name, period_start, period_end, location, page)
VALUES (%(name)s, %(period_start)s, %(period_end)s, %(location)s, %(page)s)
ON CONFLICT (name, period_start, period_end) DO UPDATE
SET made_at = now(), location = excluded.location, page = excluded.page
