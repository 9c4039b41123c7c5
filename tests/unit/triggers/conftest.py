"""Shared by the tests of the triggers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from airflow_horsies.client.hub import Waiter
from airflow_horsies.models import CancelOutcome, TaskInstanceKey
from airflow_horsies.testing import FakeAsyncClient, FakeHorsies
from airflow_horsies.testing.async_client import FakeWaiter
from tests.unit.triggers.rig import put_states


@pytest.fixture
def horsies(horsies: FakeHorsies) -> FakeHorsies:
    """Its two tasks are running."""
    put_states(horsies, {})
    return horsies


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that a trigger let go of."""
    released: list[str] = []
    release_tasks = FakeAsyncClient.release_tasks

    async def remember(
        client: FakeAsyncClient, task_ids: Iterable[str], task_instance: TaskInstanceKey, *, life: int | None = None
    ) -> dict[str, CancelOutcome]:
        released.extend(task_ids)
        return await release_tasks(client, task_ids, task_instance, life=life)

    monkeypatch.setattr(FakeAsyncClient, "release_tasks", remember)
    return released


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters wait, as the real ones do, also for tasks that never end."""
    monkeypatch.setattr(FakeWaiter, "news", Waiter.news)


@pytest.fixture
def short_hold(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setenv("AIRFLOW__HORSIES__RESUME_HOLD_SECONDS", "0.5")
    return 0.5
