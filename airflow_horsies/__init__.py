"""Airflow imports this during provider discovery, so it holds the version and nothing else."""

__version__ = "0.1.0"
