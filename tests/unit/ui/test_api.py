from __future__ import annotations

import re
import warnings

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi.routing import APIRoute

from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    InvalidTask,
    SchemaMissing,
    WireError,
)
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import TaskInstanceKey
from tests.unit.ui.rig import INSTANCE, ROUTES, URL, Client, FakePages, access_checks

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import access, api


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_every_route_asks_airflow_who_may(route: APIRoute) -> None:
    assert access_checks(route)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_every_route_that_changes_something_asks_where_the_request_comes_from(route: APIRoute) -> None:
    calls = [each.call for each in route.dependant.dependencies]
    # An outside party has a token and no page of this Airflow.
    own = access.require_callbacks if route.path.startswith("/callbacks/") else access.require_own_origin
    assert (route.methods == {"GET"}) is (own not in calls)


def test_there_is_nothing_but_these_routes() -> None:
    assert list(api.app.routes) == ROUTES


@pytest.mark.parametrize(
    "instance",
    [
        INSTANCE,
        TaskInstanceKey(dag_id="a.b-c", run_id="scheduled__2026-01-02T03:04:05+00:00", task_id="g.t", map_index=12),
        TaskInstanceKey(dag_id="läuft", run_id="日 本+1", task_id="übung"),
        TaskInstanceKey(dag_id="d", run_id="a/b", task_id="t"),
        TaskInstanceKey(dag_id="d", run_id="x/tasks/y/1/tasks/z", task_id="t", map_index=0),
        TaskInstanceKey(dag_id="d", run_id="100%2B%", task_id="t"),
        TaskInstanceKey(dag_id="d", run_id="a?limit=1#b;c&d", task_id="t"),
    ],
    ids=str,
)
def test_the_link_leads_to_its_task_instance(client: Client, pages: FakePages, instance: TaskInstanceKey) -> None:
    url = HorsiesAttemptsLink().get_link(None, ti_key=instance).removeprefix("/horsies")
    page = client.get(url)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    answer = client.get(f"/api{url}")
    assert answer.status_code == 200
    assert pages.asked == [instance]
    named = {name: answer.json()[name] for name in ("dag_id", "run_id", "task_id", "map_index")}
    assert TaskInstanceKey(**named) == instance


def test_one_client_of_the_configured_connection_is_used_and_closed(
    client: Client, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get(URL)
    assert (pages.connections, pages.closed) == (["connection horsies_default"], 1)
    monkeypatch.setenv("AIRFLOW__HORSIES__CONN_ID", "horsies_reports")
    pages.error = DatabaseUnreachable("gone")
    client.get(URL)
    assert (pages.connections[1:], pages.closed) == (["connection horsies_reports"], 2)


@pytest.mark.parametrize("name", ["dags", "runs", "tasks"])
def test_ids_longer_than_those_of_airflow_are_not_found(client: Client, pages: FakePages, name: str) -> None:
    longer = re.sub(f"/{name}/[^/]+/", f"/{name}/{'x' * 251}/", URL)
    assert longer != URL
    assert client.get(longer).status_code == 404
    assert pages.asked == []


@pytest.mark.parametrize("map_index", ["x", "-2", str(2**31), "1.5", "%7BMAP_INDEX%7D"])
def test_map_index_is_checked(client: Client, pages: FakePages, map_index: str) -> None:
    answer = client.get(f"/api/dags/sales/runs/manual__1/tasks/load/{map_index}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("map_index: ")
    assert pages.asked == []


@pytest.mark.parametrize(
    "path, status",
    [
        ("/api/dags/~/runs/manual__1/tasks/load/-1", 404),
        ("/api/dags/sales/runs/a%00b/tasks/load/-1", 404),
        ("/api/dags/sales/runs/%20/tasks/load/-1", 422),
        ("/api/dags/sales/runs//tasks/load/-1", 422),
        ("/api/dags/sales/runs/manual__1/tasks/load", 404),
        ("/api/dags/sales/runs/manual__1/tasks/load/-1/", 404),
        ("/api/other", 404),
        ("/static/x/none.js", 404),
        ("/static/x/../api.py", 404),
        ("/docs", 404),
        ("/redoc", 404),
        ("/openapi.json", 404),
    ],
)
def test_other_paths_lead_nowhere(client: Client, pages: FakePages, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert pages.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_is_read_cannot_be_changed(client: Client, method: str) -> None:
    answer = client.request(method, URL)
    assert answer.status_code == 405
    assert answer.json()["title"] == "Method Not Allowed"


@pytest.mark.parametrize(
    "error, detail",
    [
        (DatabaseUnreachable("database x at db.internal"), "cannot be reached"),
        (DatabaseBusy("time-out at db.internal"), "did not answer in time"),
        (AccessDenied("refused at db.internal"), "refuses"),
        (SchemaMissing("none at db.internal"), "has no horsies tables"),
        (DatabaseError("odd at db.internal"), "could not be read"),
        (WireError("odd row at db.internal"), "could not be read"),
        (InvalidTask("extra", "odd, db.internal"), "could not be read"),
        (AirflowNotFoundException("The conn_id is not defined, db.internal"), "no connection 'horsies_default'"),
    ],
)
def test_trouble_with_the_database_is_told_without_its_address(
    client: Client, pages: FakePages, caplog: pytest.LogCaptureFixture, error: Exception, detail: str
) -> None:
    pages.error = error
    answer = client.get(URL)
    assert answer.status_code == 503
    assert detail in answer.json()["detail"]
    assert "db.internal" not in answer.text
    assert "db.internal" in caplog.text
    assert pages.closed == 1


def test_an_unexpected_error_tells_nothing(client: Client, pages: FakePages) -> None:
    pages.error = RuntimeError("db.internal")
    answer = client.get(URL)
    assert answer.status_code == 500
    assert "db.internal" not in answer.text
    assert answer.json()["title"] == "Internal Server Error"
