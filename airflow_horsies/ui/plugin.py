"""Declares what this package adds to the Airflow UI. Importing it does nothing else."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class HorsiesPlugin(AirflowPlugin):
    """The name under which ``airflow plugins`` lists this package."""

    name = "airflow_horsies"
