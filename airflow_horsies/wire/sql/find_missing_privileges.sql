-- The privileges that this user lacks, and the grants. Objects that this release of horsies does not have are not
-- needed. The functions of horsies run with the privileges of the caller, so those on their tables count too.
WITH needed (purpose, object, privilege) AS (
    VALUES
        ('read', 'horsies_schema_version', 'SELECT'),
        ('read', 'horsies_tasks', 'SELECT'),
        ('read', 'horsies_task_attempts', 'SELECT'),
        ('read', 'horsies_task_history', 'SELECT'),
        ('read', 'horsies_worker_states', 'SELECT'),
        ('send', 'horsies_tasks', 'INSERT'),
        ('send', 'horsies_retention_classes', 'SELECT'),
        ('idempotency keys', 'horsies_key_reservations', 'SELECT'),
        ('idempotency keys', 'horsies_key_reservations', 'INSERT'),
        ('idempotency keys', 'horsies_key_reservations', 'UPDATE'),
        ('idempotency keys', 'horsies_key_reservations', 'DELETE'),
        ('cancel', 'horsies_tasks', 'UPDATE'),
        ('cancel', 'horsies_task_history', 'INSERT'),
        ('cancel', 'horsies_archive_access_gate', 'SELECT'),
        ('cancel', 'horsies_archive_access_gate', 'UPDATE'),
        ('cancel', 'horsies_archive_maintenance_sessions', 'SELECT'),
        ('cancel', 'horsies_task_history_clock_exceptions', 'SELECT'),
        ('cancel', 'horsies_task_history_clock_exceptions', 'INSERT')
),
-- A finished task leaves horsies_tasks with its attempts only if there is a history.
needed_to_move (purpose, object, privilege) AS (
    SELECT 'cancel', moved.object, 'DELETE'
    FROM (VALUES ('horsies_tasks'), ('horsies_task_attempts')) AS moved (object)
    WHERE to_regclass('horsies_task_history') IS NOT NULL
)
SELECT
    tables.purpose,
    tables.privilege || ' on ' || tables.object AS missing,
    'GRANT ' || tables.privilege || ' ON ' || to_regclass(tables.object) || ' TO ' || quote_ident(current_user) || ';'
        AS remedy
FROM (SELECT * FROM needed UNION ALL SELECT * FROM needed_to_move) AS tables
WHERE NOT has_table_privilege(to_regclass(tables.object), tables.privilege)
UNION ALL
SELECT
    functions.purpose,
    'EXECUTE on ' || proc.proname,
    'GRANT EXECUTE ON FUNCTION ' || proc.oid::regprocedure || ' TO ' || quote_ident(current_user) || ';'
FROM (
    VALUES ('cancel', 'horsies_cancel_locked_task'), ('idempotency keys', 'horsies_key_reservation_claim')
) AS functions (purpose, name)
INNER JOIN pg_proc AS proc ON proc.proname = functions.name AND pg_function_is_visible(proc.oid)
WHERE NOT has_function_privilege(proc.oid, 'EXECUTE')
UNION ALL
-- Workers create new partitions every day, so a grant on the current ones would not last.
SELECT DISTINCT
    'cancel',
    'SELECT on every partition of horsies_task_history',
    'GRANT ' || quote_ident(pg_get_userbyid(leaf.relowner)) || ' TO ' || quote_ident(current_user) || ';'
FROM pg_partition_tree(to_regclass('horsies_task_history')) AS tree
INNER JOIN pg_class AS leaf ON leaf.oid = tree.relid
WHERE tree.isleaf AND NOT has_table_privilege(leaf.oid, 'SELECT')
