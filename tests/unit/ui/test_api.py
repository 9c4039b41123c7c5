"""The routes without Airflow's authorisation and without a database; both are real in the integration tests."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk.log import mask_secret
from fastapi.routing import APIRoute

from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseError,
    DatabaseUnreachable,
    InvalidTask,
    SchemaMissing,
    WireError,
)
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import (
    Attempt,
    AttemptRecord,
    Progress,
    Submission,
    TaskFailure,
    TaskInstanceKey,
    TaskResult,
    TaskState,
    TaskView,
)

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import api

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
        "kwargs": {"a": "an argument"},
        "result": TaskResult(ok="a result"),
        **changed,
    }
    return TaskView(id=task_id, state=state, **given)


@dataclass
class FakeHook:
    """Stands where HorsiesHook stands, and remembers what it was asked."""

    submissions: Sequence[Submission] = ()
    tasks: Mapping[str, TaskView] = field(default_factory=dict)
    records: Mapping[str, tuple[AttemptRecord, ...]] = field(default_factory=dict)
    told_progress: Mapping[str, Progress] = field(default_factory=dict)
    error: Exception | None = None
    conn_id: str = ""
    asked: list[TaskInstanceKey] = field(default_factory=list)
    read: list[list[str]] = field(default_factory=list)
    closed: int = 0
    horsies_schema: Any = None
    default_conn_name = "horsies_default"

    def __call__(self, conn_id: str) -> FakeHook:
        self.conn_id = conn_id
        return self

    def __enter__(self) -> FakeHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def submissions_of(self, key: TaskInstanceKey) -> list[Submission]:
        self.asked.append(key)
        if self.error:
            raise self.error
        return list(self.submissions)

    def run_script(self, _: Any) -> dict[str, TaskState]:
        return {task.id: task.state for task in self.tasks.values()}

    def get_tasks(self, ids: list[str]) -> dict[str, TaskView]:
        self.read.append(ids)
        return {task_id: self.tasks[task_id] for task_id in ids if task_id in self.tasks}

    def attempt_records_of(self, ids: list[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        return dict(self.records)

    def progress(self, ids: list[str]) -> dict[str, Progress]:
        return dict(self.told_progress)


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


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> FakeHook:
    fake = FakeHook([submission()], {"1-1-0": view("1-1-0")})
    monkeypatch.setattr(api, "HorsiesHook", fake)
    monkeypatch.setattr(api, "Wire", lambda schema: schema)
    return fake


@pytest.fixture
def client(hook: FakeHook) -> Iterator[Client]:
    for dependency in access_checks(ROUTES[0]):
        api.app.dependency_overrides[dependency] = lambda: None
    yield Client()
    api.app.dependency_overrides.clear()


def access_checks(route: APIRoute) -> list[Any]:
    calls = [each.call for each in route.dependant.dependencies]
    return [call for call in calls if getattr(call, "__module__", "") == "airflow.api_fastapi.core_api.security"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_asks_airflow_about_the_dag_in_its_path(route: APIRoute) -> None:
    assert access_checks(route)
    assert route.path.startswith("/api/dags/{dag_id}/")


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
def test_the_link_leads_to_its_task_instance(client: Client, hook: FakeHook, instance: TaskInstanceKey) -> None:
    url = HorsiesAttemptsLink().get_link(None, ti_key=instance).removeprefix("/horsies")
    answer = client.get(url)
    assert answer.status_code == 200
    assert hook.asked == [instance]
    named = {name: answer.json()[name] for name in ("dag_id", "run_id", "task_id", "map_index")}
    assert TaskInstanceKey(**named) == instance


def test_one_hook_of_the_configured_connection_is_used_and_closed(
    client: Client, hook: FakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get(URL)
    assert (hook.conn_id, hook.closed) == ("horsies_default", 1)
    monkeypatch.setenv("AIRFLOW__HORSIES__CONN_ID", "horsies_reports")
    hook.error = DatabaseUnreachable("gone")
    client.get(URL)
    assert (hook.conn_id, hook.closed) == ("horsies_reports", 2)


def test_pages_begin_with_the_newest_and_counts_cover_all(client: Client, hook: FakeHook) -> None:
    hook.submissions = [*(submission(n) for n in range(100)), submission(7, round_=2), submission(0, life=2)]
    states = {each.horsies_task_id: TaskState.COMPLETED for each in hook.submissions}
    states |= {"1-1-7": TaskState.FAILED, "2-1-0": TaskState.RUNNING}
    hook.tasks = {task_id: view(task_id, state) for task_id, state in states.items() if task_id != "1-1-99"}
    first = client.get(URL, params={"limit": 30}).json()
    assert first["counts"] == {"RUNNING": 1, "COMPLETED": 99, "FAILED": 1}
    assert first["past_retention"] == 1
    assert (first["total"], first["limit"], first["offset"]) == (102, 30, 0)
    assert [each["horsies_task_id"] for each in first["submissions"]] == [
        "2-1-0",
        "1-2-7",
        *(f"1-1-{n}" for n in range(28)),
    ]
    assert max(map(len, hook.read)) <= api.TASKS_AT_ONCE

    last = client.get(URL, params={"limit": 30, "offset": 90}).json()
    assert [each["horsies_task_id"] for each in last["submissions"]] == [f"1-1-{n}" for n in range(88, 100)]
    assert last["submissions"][-1]["task"] is None
    beyond = client.get(URL, params={"offset": 500}).json()
    assert (beyond["submissions"], beyond["total"]) == ([], 102)


@pytest.mark.parametrize(
    "query", ["limit=0", f"limit={api.MAX_PAGE + 1}", "limit=x", "offset=-1", f"offset={2**31}", "limit=1&limit=0"]
)
def test_paging_is_bounded(client: Client, hook: FakeHook, query: str) -> None:
    answer = client.get(f"{URL}?{query}")
    assert answer.status_code == 422
    assert hook.asked == []


@pytest.mark.parametrize("map_index", ["x", "-2", str(2**31), "1.5", "%7BMAP_INDEX%7D"])
def test_map_index_is_checked(client: Client, hook: FakeHook, map_index: str) -> None:
    answer = client.get(f"/api/dags/sales/runs/manual__1/tasks/load/{map_index}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("map_index: ")
    assert hook.asked == []


@pytest.mark.parametrize(
    "path, status",
    [
        ("/api/dags/~/runs/manual__1/tasks/load/-1", 404),
        ("/api/dags/sales/runs/a%00b/tasks/load/-1", 404),
        ("/api/dags/sales/runs/%20/tasks/load/-1", 422),
        ("/api/dags/sales/runs//tasks/load/-1", 422),
        ("/api/dags/sales/runs/manual__1/tasks/load", 404),
        ("/api/dags/sales/runs/manual__1/tasks/load/-1/", 404),
        ("/", 404),
        ("/docs", 404),
        ("/redoc", 404),
        ("/openapi.json", 404),
    ],
)
def test_other_paths_lead_nowhere(client: Client, hook: FakeHook, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert hook.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(client: Client, method: str) -> None:
    answer = client.request(method, URL)
    assert answer.status_code == 405
    assert answer.json()["title"] == "Method Not Allowed"


def test_a_task_is_shown_with_its_attempts_and_without_its_data(client: Client, hook: FakeHook) -> None:
    attempts = tuple(
        Attempt(
            number=number,
            outcome="FAILED",
            will_retry=number == 1,
            started_at=NOW,
            finished_at=NOW + timedelta(seconds=1.5),
            error_code="TRY_AGAIN",
            error_message="not yet",
            worker_id="worker-1",
            hostname="host",
            pid=7,
        )
        for number in (1, 2)
    )
    failure = TaskFailure(error_code="TRY_AGAIN", message="not yet", data={"some": "data"})
    hook.tasks = {
        "1-1-0": view(
            "1-1-0",
            TaskState.FAILED,
            started_at=NOW,
            finished_at=NOW,
            error_code="TRY_AGAIN",
            result=TaskResult(error=failure),
            attempts=attempts,
        )
    }
    answer = client.get(URL)
    (shown,) = answer.json()["submissions"]
    task = shown["task"]
    assert (shown["position"], shown["life"], shown["round"], shown["try_number"]) == (0, 1, 1, 1)
    assert shown["submitted_at"] == NOW.isoformat()
    assert (task["state"], task["error_code"], task["error_message"]) == ("FAILED", "TRY_AGAIN", "not yet")
    assert [(each["attempt"], each["will_retry"], each["duration_seconds"]) for each in task["attempts"]] == [
        (1, True, 1.5),
        (2, False, 1.5),
    ]
    for data in ("an argument", "a result", "some"):
        assert data not in answer.text


def test_what_workers_tell_stands_beside_the_task_also_past_its_retention(client: Client, hook: FakeHook) -> None:
    hook.records = {
        "1-1-0": (AttemptRecord(number=1, worker_id="w", hostname="h", pid=7, started_at=NOW, metrics={"jobs": 3}),)
    }
    hook.told_progress = {"1-1-0": Progress(attempt=1, done=4, total=10, stage="sort", updated_at=NOW)}
    for tasks in (hook.tasks, {}):
        hook.tasks = tasks
        (shown,) = client.get(URL).json()["submissions"]
        (record,) = shown["attempt_records"]
        assert (record["attempt"], record["outcome"], record["metrics"]) == (1, None, {"jobs": 3})
        assert (shown["progress"]["done"], shown["progress"]["fraction"]) == (4, 0.4)


def test_what_a_task_says_is_masked_and_cut(client: Client, hook: FakeHook) -> None:
    mask_secret("correct-horse-battery")
    said = f"{'x' * (api.MAX_TEXT_CHARS - 10)}correct-horse-battery and more"
    hook.tasks = {"1-1-0": view("1-1-0", TaskState.FAILED, failed_reason=said)}
    answer = client.get(URL)
    (shown,) = answer.json()["submissions"]
    assert len(shown["task"]["failed_reason"]) == api.MAX_TEXT_CHARS
    assert "correct" not in answer.text


def test_hostile_text_is_only_text(client: Client, hook: FakeHook) -> None:
    hostile = "<script>alert(1)</script>\x00\x1b[31m\u202e\u2028 half a pair \ud800"
    hook.tasks = {"1-1-0": view("1-1-0", TaskState.FAILED, failed_reason=hostile)}
    answer = client.get(URL)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    assert answer.json()["submissions"][0]["task"]["failed_reason"] == hostile


def test_nothing_submitted_is_not_found(client: Client, hook: FakeHook) -> None:
    hook.submissions = []
    answer = client.get(URL)
    assert answer.status_code == 404
    assert answer.json() == {
        "status": 404,
        "title": "Not Found",
        "detail": "This task instance has submitted nothing to horsies.",
    }


@pytest.mark.parametrize(
    "error, detail",
    [
        (DatabaseUnreachable("database x at db.internal"), "cannot be reached"),
        (AccessDenied("refused at db.internal"), "refuses"),
        (SchemaMissing("none at db.internal"), "does not hold horsies tables"),
        (DatabaseError("odd at db.internal"), "could not be read"),
        (WireError("odd row at db.internal"), "could not be read"),
        (InvalidTask("extra", "odd, db.internal"), "could not be read"),
        (AirflowNotFoundException("The conn_id is not defined, db.internal"), "no connection 'horsies_default'"),
    ],
)
def test_trouble_with_the_database_is_told_without_its_address(
    client: Client, hook: FakeHook, caplog: pytest.LogCaptureFixture, error: Exception, detail: str
) -> None:
    hook.error = error
    answer = client.get(URL)
    assert answer.status_code == 503
    assert detail in answer.json()["detail"]
    assert "db.internal" not in answer.text
    assert "db.internal" in caplog.text
    assert hook.closed == 1


def test_an_unexpected_error_tells_nothing(client: Client, hook: FakeHook) -> None:
    hook.error = RuntimeError("db.internal")
    answer = client.get(URL)
    assert answer.status_code == 500
    assert "db.internal" not in answer.text
    assert answer.json()["title"] == "Internal Server Error"
