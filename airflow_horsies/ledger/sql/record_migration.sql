INSERT INTO airflow_horsies.migrations (version, name) VALUES (%(version)s, %(name)s)
