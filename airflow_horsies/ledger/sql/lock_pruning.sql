-- One pruner at a time in the whole database; kept until the transaction ends, and needed by nobody else.
SELECT pg_try_advisory_xact_lock(hashtextextended('airflow_horsies.pruning', 0)) AS locked
