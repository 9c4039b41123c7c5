-- A report that is made again takes the place of the one before.
INSERT INTO airflow_horsies.reports (name, period_start, period_end, location, page)
VALUES (%(name)s, %(period_start)s, %(period_end)s, %(location)s, %(page)s)
ON CONFLICT (name, period_start, period_end) DO UPDATE
SET made_at = now(), location = excluded.location, page = excluded.page
