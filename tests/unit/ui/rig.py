"""The routes without Airflow's authorisation and without a database; both are real in the integration tests."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi.routing import APIRoute

from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.core.moments import Moments
from airflow_horsies.ledger.latest import LatestIds
from airflow_horsies.models import CancelOutcome, LogCursor, LogLine, Submission, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.testing import FakeClient
from tests.unit.fakes import make_submission, make_task

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import api

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
URL = "/api/dags/sales/runs/manual__1/tasks/load/-1"
ROUTES = [route for route in api.app.routes if isinstance(route, APIRoute)]


def id_of(name: str) -> str:
    """The id of the task with the life, round and position that a name has: ``2-1-7``."""
    life, round_, position = map(int, name.split("-"))
    return f"{life:08}-{round_:04}-7000-8000-{position:012}"


def submission(position: int = 0, life: int = 1, round_: int = 1) -> Submission:
    return make_submission(
        id_of(f"{life}-{round_}-{position}"),
        position=position,
        life=life,
        round=round_,
        try_number=life,
        task_name="add",
        submitted_at=NOW,
    )


def view(task_id: str, state: TaskState = TaskState.COMPLETED, **changed: Any) -> TaskView:
    return make_task(task_id, state, **{"task_name": "add", "sent_at": NOW, "enqueued_at": NOW, **changed})


class FakePages(FakeClient, PageClient):
    """Has what the pages read beside what every client reads, and remembers what it was asked."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        super().__init__(settings)
        self.submissions: list[Submission] = [submission()]
        self.error: Exception | None = None
        self.connections: list[str] = []
        self.asked: list[TaskInstanceKey] = []
        self.ordered: list[dict[str, Any]] = []
        self.read_after: list[tuple[str, LogCursor | None, int]] = []
        self.cancelled: list[str] = []
        self.closed = 0
        self.moments = Moments()
        self.put(view(id_of("1-1-0")))

    def put(self, *tasks: TaskView) -> None:
        """As if horsies had these tasks, and no others."""
        self.memory.tasks = {task.id: task for task in tasks}

    def connect(self, settings: ClientSettings, *, seconds: float) -> FakePages:
        """In the place of ``PageClient``."""
        self.connections.append(settings.name)
        return self

    def close(self) -> None:
        self.closed += 1

    def read_latest(self, key: TaskInstanceKey, *, ids: Collection[str] | None = None) -> list[Submission]:
        self.asked.append(key)
        if self.error:
            raise self.error
        newest = max((each.life for each in self.submissions), default=0)
        found = {each.position: each for each in self.submissions if each.life == newest}
        return [found[n] for n in sorted(found) if ids is None or found[n].horsies_task_id in ids]

    def read_latest_ids(self, key: TaskInstanceKey) -> LatestIds:
        ids = [each.horsies_task_id for each in self.read_latest(key)]
        return LatestIds(len(ids), ",".join(ids))

    def read_rounds(
        self,
        key: TaskInstanceKey,
        position: int,
        *,
        life: int | None = None,
        round_: int | None = None,
        limit: int = 1,
        in_chunks: bool | None = None,
    ) -> list[Submission]:
        found = [each for each in reversed(self.submissions) if each.position == position]
        return [each for each in found if life in (None, each.life) and round_ in (None, each.round)][:limit]

    def read_moments(self, key: TaskInstanceKey, sent: Sequence[Submission], *, with_values: bool) -> Moments:
        return self.moments

    def count_states(self, ids: LatestIds) -> dict[TaskState, int]:
        return Counter(self.read_states(ids.array.split(",")).values())

    def order_tasks(self, ids: LatestIds, *, limit: int, offset: int, **asked: Any) -> tuple[int, list[str]]:
        self.ordered.append(asked)
        return ids.count, ids.array.split(",")[offset : offset + limit]

    def read_summaries(self, ids: Collection[str], **_: int) -> dict[str, TaskView]:
        return self.read_tasks(ids)

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = 1_000) -> list[LogLine]:
        self.read_after.append((task_id, after, limit))
        return super().read_lines(task_id, after=after, limit=limit)

    def release_tasks(self, ids: Collection[str], key: TaskInstanceKey, **_: int | None) -> dict[str, CancelOutcome]:
        self.cancelled += ids
        return dict.fromkeys(ids, CancelOutcome.CANCELLED)


class Client:
    """Asks the routes as a server would, with the path of the URL decoded once."""

    def get(self, url: str, **given: Any) -> httpx.Response:
        return self.request("GET", url, **given)

    def request(self, method: str, url: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow.test") as client:
                return await client.request(method, url, **given)

        return asyncio.run(ask())


class AllRights:
    def may_read(self, dag_id: str) -> bool:
        return True

    def may_read_log(self, dag_id: str) -> bool:
        return True

    def may_read_values(self, dag_id: str) -> bool:
        return True

    def may_act(self, dag_id: str) -> bool:
        return True


CHECKS = "airflow.api_fastapi.core_api.security"
# The last one is for those who have a token instead of a login.
OWN_CHECKS = ("require_connection", "require_callbacks")


def access_checks(route: APIRoute) -> list[Any]:
    calls = [each.call for each in route.dependant.dependencies]
    return [
        call
        for call in calls
        if getattr(call, "__module__", "") == CHECKS or getattr(call, "__name__", "") in OWN_CHECKS
    ]
