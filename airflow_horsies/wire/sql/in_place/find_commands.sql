-- The commands of these ids. This generation keeps no fingerprint, so the columns are compared.
SELECT
    id::text AS id, status, task_name, queue_name, priority, kwargs, good_until, task_options,
    NULL::bytea AS command_fingerprint
FROM horsies_tasks
WHERE id = ANY(%(ids)s::text[])
