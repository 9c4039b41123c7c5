-- The tables decide, not the version number: a newer worker increases the number of an older database and leaves its
-- tables unchanged until the offline cutover of horsies.
SELECT
    tasks.oid IS NOT NULL AS has_tasks,
    (
        SELECT format_type(a.atttypid, NULL)
        FROM pg_attribute AS a
        WHERE a.attrelid = tasks.oid AND a.attname = 'id'
    ) AS id_type,
    EXISTS (
        SELECT FROM pg_constraint AS c
        WHERE c.conrelid = tasks.oid AND c.conname = 'horsies_tasks_live_status_only'
    ) AS holds_live_only,
    to_regclass('horsies_task_history') IS NOT NULL AS has_history,
    to_regclass('horsies_schema_version') IS NOT NULL AS has_version,
    ARRAY(
        SELECT a.attname::text
        FROM pg_attribute AS a
        WHERE a.attrelid = tasks.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS columns,
    EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.proname = 'horsies_cancel_locked_task' AND pg_function_is_visible(p.oid)
    ) AS has_cancel_function,
    EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.proname = 'horsies_task_provenance_staged' AND pg_function_is_visible(p.oid)
    ) AS has_archive_lookup
FROM (SELECT to_regclass('horsies_tasks') AS oid) AS tasks
