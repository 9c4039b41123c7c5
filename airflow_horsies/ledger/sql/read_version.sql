SELECT coalesce(max(version), 0) AS version FROM airflow_horsies.migrations
