"""The routes without Airflow's authorisation and without a database: what stands in their place."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi.routing import APIRoute

from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage
from airflow_horsies.core.report import Report
from airflow_horsies.ledger.latest import Deployment, LatestIds
from airflow_horsies.models import (
    AttemptRecord,
    CancelOutcome,
    LogCursor,
    LogLine,
    Progress,
    Submission,
    TaskInstanceKey,
    TaskState,
    TaskView,
)

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import access, api

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
URL = "/api/dags/sales/runs/manual__1/tasks/load/-1"
ROUTES = [route for route in api.app.routes if isinstance(route, APIRoute)]


def submission(position: int = 0, life: int = 1, round_: int = 1) -> Submission:
    return Submission(
        horsies_task_id=f"{life}-{round_}-{position}",
        namespace="default",
        task_instance=INSTANCE,
        position=position,
        life=life,
        round=round_,
        try_number=life,
        task_name="add",
        queue="default",
        good_until=None,
        submitted_at=NOW,
    )


def view(task_id: str, state: TaskState = TaskState.COMPLETED, **changed: Any) -> TaskView:
    given = {
        "task_name": "add",
        "queue": "default",
        "priority": 100,
        "sent_at": NOW,
        "enqueued_at": NOW,
        "retry_count": 0,
        "max_retries": 0,
        **changed,
    }
    return TaskView(id=task_id, state=state, **given)


@dataclass
class FakePageClient:
    """Stands where the client of a request stands, and remembers what it was asked."""

    submissions: Sequence[Submission] = ()
    tasks: Mapping[str, TaskView] = field(default_factory=dict)
    records: Mapping[str, tuple[AttemptRecord, ...]] = field(default_factory=dict)
    told_progress: Mapping[str, Progress] = field(default_factory=dict)
    error: Exception | None = None
    conn_id: str = ""
    asked: list[TaskInstanceKey] = field(default_factory=list)
    ordered: list[dict[str, Any]] = field(default_factory=list)
    read: list[tuple[str, LogCursor, int]] = field(default_factory=list)
    lines: Sequence[LogLine] = ()
    cancelled: list[str] = field(default_factory=list)
    closed: int = 0
    queues: Sequence[QueueDepth] = ()
    workers: Sequence[WorkerState] = ()
    reports: Sequence[Report] = ()
    deployment = Deployment("default", "http://airflow.test")

    def __call__(self, *, seconds: float = 0) -> FakePageClient:
        self.conn_id = access.conn_id()
        return self

    def __enter__(self) -> FakePageClient:
        return self

    def __exit__(self, *_: object) -> None:
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
        self, key: TaskInstanceKey, position: int, *, life: int | None = None, round_: int | None = None, limit: int = 1
    ) -> list[Submission]:
        found = [each for each in reversed(self.submissions) if each.position == position]
        return [each for each in found if life in (None, each.life) and round_ in (None, each.round)][:limit]

    def count_states(self, ids: LatestIds) -> Counter[TaskState]:
        return Counter(self.tasks[each].state for each in ids.array.split(",") if each in self.tasks)

    def order_tasks(self, ids: LatestIds, *, limit: int, offset: int, **asked: Any) -> tuple[int, list[str]]:
        self.ordered.append(asked)
        return ids.count, ids.array.split(",")[offset : offset + limit]

    def read_summaries(self, ids: list[str], **_: int) -> dict[str, TaskView]:
        return self.read_tasks(ids)

    def read_tasks(self, ids: list[str]) -> dict[str, TaskView]:
        return {task_id: self.tasks[task_id] for task_id in ids if task_id in self.tasks}

    def read_lines(self, task_id: str, after: LogCursor, limit: int = 1_000) -> list[LogLine]:
        self.read.append((task_id, after, limit))
        return [line for line in self.lines if line.cursor > after][:limit]

    def release_tasks(self, ids: list[str], key: TaskInstanceKey) -> dict[str, CancelOutcome]:
        self.cancelled += ids
        return dict.fromkeys(ids, CancelOutcome.CANCELLED)

    def read_attempts(self, ids: list[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        return dict(self.records)

    def read_progress(self, ids: list[str]) -> dict[str, Progress]:
        return dict(self.told_progress)

    def read_submissions_of_run(self, dag_id: str, run_id: str, *, limit: int) -> list[Submission]:
        return list(self.submissions)[:limit]

    def read_submissions_of_tasks(self, ids: Collection[str]) -> list[Submission]:
        return [each for each in self.submissions if each.horsies_task_id in ids]

    def list_recent_tasks(self, *, limit: int) -> TaskPage:
        return TaskPage(tasks=tuple(self.tasks.values())[:limit], next=None)

    def find_failed(self, *, window: int, limit: int, before: PageCursor | None) -> FailedTasks:
        failed = [task.id for task in self.tasks.values() if task.state in (TaskState.FAILED, TaskState.EXPIRED)]
        return FailedTasks(ids=tuple(failed), searched_to=NOW, next=PageCursor(at=NOW, task_id="the-last"))

    def read_queues(self) -> list[QueueDepth]:
        return list(self.queues)

    def read_workers(self) -> list[WorkerState]:
        return list(self.workers)


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

    def may_act(self, dag_id: str) -> bool:
        return True


CHECKS = "airflow.api_fastapi.core_api.security"
OWN_CHECKS = ("require_connection",)


def access_checks(route: APIRoute) -> list[Any]:
    calls = [each.call for each in route.dependant.dependencies]
    return [
        call
        for call in calls
        if getattr(call, "__module__", "") == CHECKS or getattr(call, "__name__", "") in OWN_CHECKS
    ]
