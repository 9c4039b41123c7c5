"""Declares the pages that this package adds to the Airflow UI. Importing it has no other effect."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_horsies.links import URL_PREFIX, base_path
from airflow_horsies.ui.gate import Gate

PAGES = f"{base_path()}{URL_PREFIX}"


class HorsiesPlugin(AirflowPlugin):
    """The plugin, as ``airflow plugins`` lists it."""

    name = "airflow_horsies"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow declares it as it is here
        {"app": Gate("airflow_horsies.ui.api"), "url_prefix": URL_PREFIX, "name": "Horsies"}
    ]
    # Airflow replaces the names in braces.
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Horsies", "href": f"{PAGES}/", "destination": "nav", "category": "browse", "url_route": "horsies"},
        {
            "name": "Horsies",
            "href": f"{PAGES}/dags/{{DAG_ID}}/gantt/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "horsies-run",
        },
        {
            "name": "Horsies",
            "href": f"{PAGES}/dags/{{DAG_ID}}/runs/{{RUN_ID}}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "horsies-task",
        },
    ]
