-- The catalogue answers everybody; to_regclass raises for a user who may not look into the schema.
SELECT EXISTS (
    SELECT FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'airflow_horsies' AND c.relname = 'migrations'
) AS found
