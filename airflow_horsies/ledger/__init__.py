"""Our own tables, in the Postgres schema airflow_horsies beside horsies' tables. Nothing here does I/O."""
