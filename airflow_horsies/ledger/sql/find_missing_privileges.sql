-- The privileges on our own tables that this user lacks, and the grants.
SELECT
    'CREATE on database ' || current_database() AS missing,
    'GRANT CREATE ON DATABASE ' || quote_ident(current_database()) || ' TO ' || quote_ident(current_user) || ';'
        AS remedy
WHERE
    NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'airflow_horsies')
    AND NOT has_database_privilege(current_database(), 'CREATE')
UNION ALL
SELECT
    'USAGE on schema airflow_horsies',
    'GRANT USAGE ON SCHEMA airflow_horsies TO ' || quote_ident(current_user) || ';'
FROM pg_namespace AS namespace
WHERE namespace.nspname = 'airflow_horsies' AND NOT has_schema_privilege(namespace.oid, 'USAGE')
UNION ALL
SELECT
    needed.privilege || ' on airflow_horsies.' || relation.relname,
    'GRANT ' || needed.privilege || ' ON airflow_horsies.' || quote_ident(relation.relname) || ' TO '
        || quote_ident(current_user) || ';'
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON namespace.oid = relation.relnamespace
CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS needed (privilege)
WHERE
    namespace.nspname = 'airflow_horsies'
    AND relation.relkind IN ('r', 'v')
    AND ((relation.relname <> 'migrations' AND relation.relkind = 'r') OR needed.privilege = 'SELECT')
    AND NOT has_table_privilege(relation.oid, needed.privilege)
