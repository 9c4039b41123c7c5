-- One pruner at a time in the whole database; held until the transaction ends, and used only here.
SELECT pg_try_advisory_xact_lock(hashtextextended('airflow_horsies.pruning', 0)) AS locked
