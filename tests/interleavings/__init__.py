"""Every order in which the statements of two writers can meet, on real Postgres."""
