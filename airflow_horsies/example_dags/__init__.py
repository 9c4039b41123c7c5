"""DAGs to copy from; their tasks are those of ``airflow_horsies.worker.sample_tasks``."""
