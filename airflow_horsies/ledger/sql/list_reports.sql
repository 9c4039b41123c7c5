SELECT name, period_start, period_end, made_at, location
FROM airflow_horsies.reports
ORDER BY period_end DESC, period_start DESC, name
LIMIT %(limit)s
