from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

from airflow_horsies.ui.gate import Gate
from airflow_horsies.ui.plugin import HorsiesPlugin


def test_airflow_finds_the_plugin_and_what_it_mounts() -> None:
    (entry,) = [entry for entry in entry_points(group="airflow.plugins") if entry.name == "airflow_horsies"]
    assert entry.load() is HorsiesPlugin
    (mounted,) = HorsiesPlugin.fastapi_apps
    assert mounted["url_prefix"] == "/horsies"
    assert isinstance(mounted["app"], Gate)


def test_importing_it_leaves_the_routes_and_drivers_unloaded() -> None:
    # Every process of Airflow loads the plugin; what Airflow itself has loaded by then is not counted.
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules); import airflow_horsies.ui.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "airflow_horsies.ui.plugin" in loaded
    heavy = ("airflow_horsies.ui.api", "airflow_horsies.hook", "fastapi", "psycopg", "airflow.api_fastapi", "horsies")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_every_view_has_a_route_of_its_own_and_leads_to_a_page_of_ours() -> None:
    views = HorsiesPlugin.external_views
    assert [view["destination"] for view in views] == ["nav", "dag_run", "task_instance"]
    assert len({view["url_route"] for view in views}) == len(views)
    assert all(view["href"].startswith("/horsies/") for view in views)
    assert views[2]["href"] == "/horsies/dags/{DAG_ID}/runs/{RUN_ID}/tasks/{TASK_ID}/{MAP_INDEX}"
