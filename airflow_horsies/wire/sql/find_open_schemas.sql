-- Schemas of the search path in which every user may create functions and operators. One that matches the arguments
-- better than a built-in one would be called instead, with the privileges of this user.
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
