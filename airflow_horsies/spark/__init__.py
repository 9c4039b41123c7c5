"""horsies' tasks, attempts, submissions and workers as Spark DataFrames."""

from airflow_horsies.spark.source import HorsiesDataSource

__all__ = ["HorsiesDataSource"]
