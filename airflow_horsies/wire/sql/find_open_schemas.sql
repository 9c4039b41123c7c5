-- Schemas of the search path in which everybody may create functions and operators. One whose arguments fit better than
-- those of Postgres' own would be called in their place, with the privileges of this user.
SELECT
    namespace.nspname AS name,
    'REVOKE CREATE ON SCHEMA ' || quote_ident(namespace.nspname) || ' FROM PUBLIC;' AS remedy
FROM pg_catalog.pg_namespace AS namespace
CROSS JOIN LATERAL pg_catalog.aclexplode(namespace.nspacl) AS granted
WHERE
    namespace.nspname = ANY(pg_catalog.current_schemas(FALSE))
    AND granted.grantee = 0
    AND granted.privilege_type = 'CREATE'
ORDER BY namespace.nspname
