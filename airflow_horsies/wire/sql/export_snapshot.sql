-- What this transaction sees, for others to see the same while it lasts.
SELECT pg_export_snapshot() AS snapshot
