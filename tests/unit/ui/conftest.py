from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.ui.pages import NOW, ROUTES, AllRights, Client, FakePageClient, access_checks, submission, view

# isort: split
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api.security import get_user

from airflow_horsies.ui import access, api
from airflow_horsies.ui.airflow_side import AirflowTry
from airflow_horsies.ui.routes import instance as instance_routes
from airflow_horsies.ui.routes import overview as overview_routes
from airflow_horsies.ui.routes import run as run_routes


@pytest.fixture
def horsies(monkeypatch: pytest.MonkeyPatch) -> FakePageClient:
    fake = FakePageClient([submission()], {"1-1-0": view("1-1-0")})
    for module in (instance_routes, overview_routes, run_routes):
        monkeypatch.setattr(module, "page_client", fake)
    tries = [AirflowTry(number=1, state="running", started_at=NOW, ended_at=None)]
    monkeypatch.setattr(instance_routes, "read_tries", lambda session, key: tries)
    monkeypatch.setattr(instance_routes, "read_rendered", lambda session, key: {})
    return fake


@pytest.fixture
def client(horsies: FakePageClient) -> Iterator[Client]:
    for route in ROUTES:
        for dependency in access_checks(route):
            api.app.dependency_overrides[dependency] = lambda: None
        for dependant in route.dependant.dependencies:
            if "log_action" in getattr(dependant.call, "__name__", ""):
                api.app.dependency_overrides[dependant.call] = lambda: None
    api.app.dependency_overrides[_get_session] = lambda: None
    api.app.dependency_overrides[get_user] = lambda: None
    api.app.dependency_overrides[access.Rights] = AllRights
    yield Client()
    api.app.dependency_overrides.clear()
