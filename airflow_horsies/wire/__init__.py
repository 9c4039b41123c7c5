"""The wire protocol: the Postgres schema of horsies. No module here does I/O."""
