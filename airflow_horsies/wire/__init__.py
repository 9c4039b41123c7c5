"""The wire protocol: horsies' own Postgres schema. Nothing here does I/O."""
