"""Declares what this package adds to the Airflow UI. Importing it does nothing else."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_horsies.links import URL_PREFIX
from airflow_horsies.ui.gate import Gate


class HorsiesPlugin(AirflowPlugin):
    """The name under which ``airflow plugins`` lists this package."""

    name = "airflow_horsies"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow declares it as it is here
        {"app": Gate("airflow_horsies.ui.api"), "url_prefix": URL_PREFIX, "name": "Horsies"}
    ]
