-- Every transaction before this one has ended, in whatever order they started; newer ones may still write.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon, clock_timestamp() AS at
