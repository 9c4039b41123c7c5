SELECT page
FROM airflow_horsies.reports
WHERE name = %(name)s AND period_start = %(period_start)s AND period_end = %(period_end)s
