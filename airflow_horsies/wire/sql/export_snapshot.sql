-- The snapshot of this transaction, for use by others while it lasts.
SELECT pg_export_snapshot() AS snapshot
