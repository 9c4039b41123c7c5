"""Shared by the tests of the pages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from airflow_horsies.testing import FakeHorsies
from tests.unit.ui.rig import NOW, ROUTES, AllRights, Client, FakePages, access_checks

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.api_fastapi.core_api.security import get_user

    from airflow_horsies.ui import access, api, clients
    from airflow_horsies.ui.airflow_side import AirflowTry
    from airflow_horsies.ui.routes import instance as instance_routes


@pytest.fixture
def pages(horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch) -> FakePages:
    pages = FakePages()
    monkeypatch.setattr(clients, "PageClient", pages.connect)
    tries = [AirflowTry(number=1, state="running", started_at=NOW, ended_at=None)]
    monkeypatch.setattr(instance_routes, "read_tries", lambda session, key: tries)
    monkeypatch.setattr(instance_routes, "read_rendered", lambda session, key: {})
    return pages


@pytest.fixture
def client(pages: FakePages) -> Iterator[Client]:
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
