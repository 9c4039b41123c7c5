DELETE FROM airflow_horsies.repairs
WHERE requested_at < now() - make_interval(secs => %(older_than_seconds)s::double precision)
