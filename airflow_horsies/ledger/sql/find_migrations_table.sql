-- Every user may read the catalog; to_regclass fails for a user without access to the schema. A table without
-- min_writer is about to be altered by a migration.
SELECT
    count(*) > 0 AS found,
    coalesce(bool_or(EXISTS (
        SELECT FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attname = 'min_writer'
    )), FALSE) AS has_min_writer
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'airflow_horsies' AND c.relname = 'migrations'
