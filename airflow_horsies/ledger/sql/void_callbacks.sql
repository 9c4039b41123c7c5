-- Open callbacks of a task instance that nobody waits for any more.
UPDATE airflow_horsies.callbacks
SET outcome = 'VOID', completed_at = now()
WHERE
    namespace = %(namespace)s
    AND dag_id = %(dag_id)s
    AND run_id = %(run_id)s
    AND task_id = %(task_id)s
    AND map_index = %(map_index)s
    AND outcome IS NULL
    AND (%(only)s::uuid IS NULL OR id = %(only)s::uuid)
    AND id IS DISTINCT FROM %(but)s::uuid
RETURNING pg_notify('airflow_horsies_callback', id::text)::text AS notified
