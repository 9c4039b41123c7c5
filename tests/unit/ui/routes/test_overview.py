from __future__ import annotations

import warnings
from uuid import UUID

import pytest
from cryptography.fernet import Fernet

from airflow_horsies.models import PageCursor
from tests.unit.ui.rig import NOW, Client

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes import overview as overview_routes


def test_where_failures_go_on_is_told_without_the_id_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    fernet = Fernet(Fernet.generate_key())
    monkeypatch.setattr(overview_routes, "get_fernet", lambda: fernet)
    cursor = PageCursor(at=NOW, task_id="01a1e223-68a7-7210-ad76-a42348fdcb7c")
    next_failures = overview_routes._next_failures(cursor)
    assert cursor.task_id not in str(next_failures)
    assert len(next_failures.id) <= 200
    assert overview_routes._cursor(next_failures.at, next_failures.id) == cursor


@pytest.mark.parametrize(
    "before_at, before_id",
    [
        (NOW.isoformat(), "01a1e223-68a7-7210-ad76-a42348fdcb7c"),
        (NOW.isoformat(), "ü"),
        (NOW.isoformat(), "x" * 201),
        ("0001-01-01T00:00:00+23:59", ""),
        ("9999-12-31T23:59:59-23:59", ""),
        ("2026-01-02T03:04:05", ""),
    ],
)
def test_failures_go_on_only_where_they_were_told_to(
    client: Client, monkeypatch: pytest.MonkeyPatch, before_at: str, before_id: str
) -> None:
    fernet = Fernet(Fernet.generate_key())
    monkeypatch.setattr(overview_routes, "get_fernet", lambda: fernet)
    asked = {"before_at": before_at, "before_id": before_id or fernet.encrypt(str(UUID(int=7)).encode()).decode()}
    assert client.get("/api/failures", params=asked).status_code == 422
