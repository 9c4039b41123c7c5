-- Not if an answer or a heartbeat came at the last moment.
UPDATE airflow_horsies.callbacks
SET outcome = 'EXPIRED', completed_at = clock_timestamp()
WHERE id = %(id)s::uuid AND outcome IS NULL AND expires_at <= clock_timestamp()
