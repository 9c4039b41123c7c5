"""The Spark data source ``horsies``; users import it from ``airflow_horsies.spark``."""
