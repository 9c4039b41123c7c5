INSERT INTO airflow_horsies.messages (id, target, name, payload, dedup_key, sent_by)
VALUES (%(id)s::uuid, %(target)s::uuid, %(name)s, %(payload)s, %(dedup_key)s, %(sent_by)s)
ON CONFLICT DO NOTHING
