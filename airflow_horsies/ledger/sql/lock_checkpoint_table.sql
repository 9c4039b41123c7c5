-- The table lock of a checkpoint, before it locks its task. Writes nothing.
UPDATE airflow_horsies.checkpoints SET saved_at = now() WHERE FALSE
