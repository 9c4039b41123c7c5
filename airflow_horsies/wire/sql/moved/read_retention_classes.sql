SELECT class_key, duration FROM horsies_retention_classes ORDER BY class_key
