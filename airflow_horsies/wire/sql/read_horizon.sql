-- Every transaction before this one has ended, in whatever order they began; what is newer may still change.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon, clock_timestamp() AS at
