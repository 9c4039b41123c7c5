SELECT max(version) AS version FROM horsies_schema_version
