-- Tables of an older version have no min_writer.
SELECT
    coalesce(max(version), 0) AS version,
    coalesce(max((to_jsonb(migration) ->> 'min_writer')::integer), 1) AS min_writer
FROM airflow_horsies.migrations AS migration
