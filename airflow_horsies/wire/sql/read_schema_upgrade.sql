SELECT applied_at AS upgraded_at FROM horsies_schema_version ORDER BY version DESC LIMIT 1
