"""The routes without Airflow's authorisation and without a database; both are real in the integration tests."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk.log import mask_secret
from cryptography.fernet import Fernet
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
from airflow_horsies.models import (
    Attempt,
    AttemptRecord,
    LogCursor,
    LogLine,
    PageCursor,
    Progress,
    TaskInstanceKey,
    TaskState,
)
from tests.unit.ui.pages import (
    INSTANCE,
    NOW,
    ROUTES,
    URL,
    AllRights,
    Client,
    FakePageClient,
    access,
    access_checks,
    api,
    submission,
    view,
)

# isort: split
from airflow_horsies.ui.answers import MAX_TEXT_CHARS
from airflow_horsies.ui.routes import instance as instance_routes
from airflow_horsies.ui.routes import overview as overview_routes


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_every_route_asks_airflow_who_may(route: APIRoute) -> None:
    assert access_checks(route)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_every_route_that_changes_something_asks_where_the_request_comes_from(route: APIRoute) -> None:
    calls = [each.call for each in route.dependant.dependencies]
    assert (route.methods == {"GET"}) is (access.require_own_origin not in calls)


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
def test_the_link_leads_to_its_task_instance(
    client: Client, horsies: FakePageClient, instance: TaskInstanceKey
) -> None:
    url = HorsiesAttemptsLink().get_link(None, ti_key=instance).removeprefix("/horsies")
    page = client.get(url)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    answer = client.get(f"/api{url}")
    assert answer.status_code == 200
    assert horsies.asked == [instance]
    named = {name: answer.json()[name] for name in ("dag_id", "run_id", "task_id", "map_index")}
    assert TaskInstanceKey(**named) == instance


def test_one_client_of_the_configured_connection_is_used_and_closed(
    client: Client, horsies: FakePageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get(URL)
    assert (horsies.conn_id, horsies.closed) == ("horsies_default", 1)
    monkeypatch.setenv("AIRFLOW__HORSIES__CONN_ID", "horsies_reports")
    horsies.error = DatabaseUnreachable("gone")
    client.get(URL)
    assert (horsies.conn_id, horsies.closed) == ("horsies_reports", 2)


def test_rounds_begin_with_the_newest_and_counts_cover_what_was_submitted_last(
    client: Client, horsies: FakePageClient
) -> None:
    horsies.submissions = [submission(0), *(submission(n, life=2) for n in range(100)), submission(7, life=2, round_=2)]
    states = {each.horsies_task_id: TaskState.COMPLETED for each in horsies.submissions}
    states |= {"2-1-7": TaskState.FAILED, "2-1-0": TaskState.RUNNING, "1-1-0": TaskState.FAILED}
    horsies.tasks = {task_id: view(task_id, state) for task_id, state in states.items() if task_id != "2-1-99"}
    shown = client.get(URL).json()
    assert shown["counts"] == {"RUNNING": 1, "COMPLETED": 98}
    assert (shown["positions"], shown["past_retention"]) == (100, 1)
    assert [each["horsies_task_id"] for each in shown["submissions"]] == ["2-1-0", "1-1-0"]
    item = client.get(URL, params={"position": 7}).json()
    assert [each["horsies_task_id"] for each in item["submissions"]] == ["2-2-7", "2-1-7"]
    assert client.get(URL, params={"position": 100}).status_code == 404


def test_the_database_sorts_filters_and_pages_the_items_of_a_batch(client: Client, horsies: FakePageClient) -> None:
    horsies.submissions = [submission(n) for n in range(10)]
    asked = {"sort": "duration", "descending": True, "state": "FAILED", "limit": 3, "offset": 8}
    answer = client.get(f"{URL}/items", params=asked).json()
    assert horsies.ordered == [{"sort": "duration", "descending": True, "state": TaskState.FAILED}]
    assert (answer["total"], [each["position"] for each in answer["items"]]) == (10, [8, 9])


@pytest.mark.parametrize(
    "query",
    [
        "items?limit=0",
        f"items?limit={instance_routes.MAX_PAGE + 1}",
        "items?limit=x",
        "items?offset=-1",
        f"items?offset={2**31}",
        "items?sort=kwargs",
        "items?state=ANY",
        "?lines=0",
        f"?lines={instance_routes.MAX_LINES + 1}",
        "?position=-1",
        "?after_number=x",
    ],
)
def test_what_is_asked_for_is_bounded(client: Client, horsies: FakePageClient, query: str) -> None:
    answer = client.get(f"{URL}{'' if query.startswith('?') else '/'}{query}")
    assert answer.status_code == 422
    assert horsies.asked == []


def test_lines_go_on_after_the_last_that_was_seen(client: Client, horsies: FakePageClient) -> None:
    horsies.lines = [
        LogLine(attempt=attempt, number=number, logged_at=NOW, level="INFO", text=f"{attempt}.{number}")
        for attempt in (1, 2)
        for number in (1, 2, 3)
    ]
    log = client.get(URL, params={"after_attempt": 1, "after_number": 2, "lines": 2}).json()["log"]
    assert [line["text"] for line in log["lines"]] == ["1.3", "2.1"]
    assert log["more"]
    assert horsies.read == [("1-1-0", LogCursor(1, 2), 2)]


def test_lines_are_for_those_who_may_read_logs(
    client: Client, horsies: FakePageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllRights, "may_read_log", lambda self, dag_id: False)
    horsies.lines = [LogLine(attempt=1, number=1, logged_at=NOW, level="INFO", text="said")]
    log = client.get(URL).json()["log"]
    assert (log["may_read"], log["lines"]) == (False, [])


def test_a_cancel_names_a_position_and_reaches_the_newest_task_of_it(client: Client, horsies: FakePageClient) -> None:
    horsies.submissions = [submission(0), submission(1), submission(1, round_=2)]
    headers = {"origin": "http://airflow.test"}
    answer = client.request("POST", f"{URL}/cancel", json={"position": 1}, headers=headers)
    assert answer.json() == {"outcomes": {"CANCELLED": 1}, "past_retention": 0}
    assert horsies.cancelled == ["1-2-1"]
    assert client.request("POST", f"{URL}/cancel", json={"position": 2}, headers=headers).status_code == 404
    assert client.request("POST", f"{URL}/cancel", json={}, headers=headers).status_code == 200
    assert horsies.cancelled == ["1-2-1", "1-1-0", "1-2-1"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain", "origin": "http://airflow.test"}, 415),
        ({"content-type": "application/x-www-form-urlencoded", "origin": "http://airflow.test"}, 415),
        ({"content-type": "application/json"}, 403),
        ({"content-type": "application/json", "origin": "http://elsewhere.test"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
        ({"content-type": "application/json", "authorization": "Bearer x", "origin": "http://elsewhere.test"}, 403),
        ({"content-type": "application/json", "authorization": "Bearer x"}, 200),
        ({"content-type": "application/json; charset=utf-8", "origin": "http://airflow.test"}, 200),
    ],
)
def test_nothing_is_cancelled_from_elsewhere(
    client: Client, horsies: FakePageClient, headers: dict[str, str], status: int
) -> None:
    answer = client.request("POST", f"{URL}/cancel", content="{}", headers=headers)
    assert answer.status_code == status
    assert bool(horsies.cancelled) is (status == 200)


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


@pytest.mark.parametrize("body", ["", "x", "null", "[]", '{"dag_id": "other"}', '{"position": -1}'])
def test_a_body_that_is_no_cancel_is_refused_before_it_is_logged(
    client: Client, horsies: FakePageClient, body: str
) -> None:
    logged: list[None] = []
    (route,) = [route for route in ROUTES if route.path.endswith("/cancel")]
    calls = [each.call for each in route.dependant.dependencies]
    (log_action,) = [call for call in calls if getattr(call, "__name__", "") == "log_action"]
    api.app.dependency_overrides[log_action] = lambda: logged.append(None)
    headers = {"origin": "http://airflow.test", "content-type": "application/json"}
    answer = client.request("POST", f"{URL}/cancel", content=body, headers=headers)
    assert (answer.status_code, horsies.cancelled, logged) == (422, [], [])


@pytest.mark.parametrize("name", ["dags", "runs", "tasks"])
def test_ids_longer_than_those_of_airflow_are_not_found(client: Client, horsies: FakePageClient, name: str) -> None:
    longer = re.sub(f"/{name}/[^/]+/", f"/{name}/{'x' * 251}/", URL)
    assert longer != URL
    assert client.get(longer).status_code == 404
    assert horsies.asked == []


@pytest.mark.parametrize("map_index", ["x", "-2", str(2**31), "1.5", "%7BMAP_INDEX%7D"])
def test_map_index_is_checked(client: Client, horsies: FakePageClient, map_index: str) -> None:
    answer = client.get(f"/api/dags/sales/runs/manual__1/tasks/load/{map_index}")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("map_index: ")
    assert horsies.asked == []


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
def test_other_paths_lead_nowhere(client: Client, horsies: FakePageClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert horsies.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_is_read_cannot_be_changed(client: Client, method: str) -> None:
    answer = client.request(method, URL)
    assert answer.status_code == 405
    assert answer.json()["title"] == "Method Not Allowed"


def test_a_task_is_shown_with_its_attempts_and_pieces_of_time(client: Client, horsies: FakePageClient) -> None:
    attempts = tuple(
        Attempt(
            number=number,
            outcome="FAILED",
            will_retry=number == 1,
            started_at=NOW + timedelta(seconds=2 * number),
            finished_at=NOW + timedelta(seconds=2 * number + 1.5),
            error_code="TRY_AGAIN",
            error_message="not yet",
            worker_id="worker-1",
            hostname="host",
            pid=7,
        )
        for number in (1, 2)
    )
    failed = view("1-1-0", TaskState.FAILED, finished_at=NOW, error_code="TRY_AGAIN", attempts=attempts)
    horsies.tasks = {"1-1-0": failed}
    (shown,) = client.get(URL).json()["submissions"]
    assert (shown["position"], shown["life"], shown["round"], shown["try_number"]) == (0, 1, 1, 1)
    assert shown["submitted_at"] == NOW.isoformat()
    assert (shown["task"]["state"], shown["task"]["error_code"]) == ("FAILED", "TRY_AGAIN")
    assert [(each["attempt"], each["will_retry"], each["duration_seconds"]) for each in shown["attempts"]] == [
        (1, True, 1.5),
        (2, False, 1.5),
    ]
    assert [each["kind"] for each in shown["segments"]] == ["waiting", "running", "backing off", "running"]


def test_what_workers_tell_is_shown_also_past_the_retention_of_the_task(
    client: Client, horsies: FakePageClient
) -> None:
    horsies.records = {
        "1-1-0": (AttemptRecord(number=1, worker_id="w", hostname="h", pid=7, started_at=NOW, metrics={"jobs": 3}),)
    }
    horsies.told_progress = {"1-1-0": Progress(attempt=1, done=4, total=10, stage="sort", updated_at=NOW)}
    for tasks in (horsies.tasks, {}):
        horsies.tasks = tasks
        (shown,) = client.get(URL).json()["submissions"]
        (record,) = shown["attempts"]
        assert (record["attempt"], record["outcome"], record["metrics"]) == (1, "LOST", {"jobs": 3})
        assert (shown["progress"]["done"], shown["progress"]["fraction"]) == (4, 0.4)


def test_what_a_task_says_is_masked_and_cut(client: Client, horsies: FakePageClient) -> None:
    mask_secret("correct-horse-battery")
    said = f"{'x' * (MAX_TEXT_CHARS - 10)}correct-horse-battery and more"
    horsies.tasks = {"1-1-0": view("1-1-0", TaskState.FAILED, failed_reason=said)}
    answer = client.get(URL)
    (shown,) = answer.json()["submissions"]
    assert len(shown["task"]["failed_reason"]) == MAX_TEXT_CHARS
    assert "correct" not in answer.text


def test_hostile_text_is_only_text(client: Client, horsies: FakePageClient) -> None:
    hostile = "<script>alert(1)</script>\x00\x1b[31m\u202e\u2028 half a pair \ud800"
    horsies.tasks = {"1-1-0": view("1-1-0", TaskState.FAILED, failed_reason=hostile)}
    answer = client.get(URL)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    assert answer.json()["submissions"][0]["task"]["failed_reason"] == hostile


def test_nothing_submitted_is_told_as_such(client: Client, horsies: FakePageClient) -> None:
    horsies.submissions = []
    answer = client.get(URL)
    assert answer.status_code == 200
    assert answer.json()["submissions"] == []
    assert [each["state"] for each in answer.json()["tries"]] == ["running"]
    for path in ("/items", "/values", "/log.txt"):
        assert client.get(f"{URL}{path}").status_code == 404


@pytest.mark.parametrize(
    "error, detail",
    [
        (DatabaseUnreachable("database x at db.internal"), "cannot be reached"),
        (DatabaseBusy("time-out at db.internal"), "did not answer in time"),
        (AccessDenied("refused at db.internal"), "refuses"),
        (SchemaMissing("none at db.internal"), "does not hold horsies tables"),
        (DatabaseError("odd at db.internal"), "could not be read"),
        (WireError("odd row at db.internal"), "could not be read"),
        (InvalidTask("extra", "odd, db.internal"), "could not be read"),
        (AirflowNotFoundException("The conn_id is not defined, db.internal"), "no connection 'horsies_default'"),
    ],
)
def test_trouble_with_the_database_is_told_without_its_address(
    client: Client, horsies: FakePageClient, caplog: pytest.LogCaptureFixture, error: Exception, detail: str
) -> None:
    horsies.error = error
    answer = client.get(URL)
    assert answer.status_code == 503
    assert detail in answer.json()["detail"]
    assert "db.internal" not in answer.text
    assert "db.internal" in caplog.text
    assert horsies.closed == 1


def test_an_unexpected_error_tells_nothing(client: Client, horsies: FakePageClient) -> None:
    horsies.error = RuntimeError("db.internal")
    answer = client.get(URL)
    assert answer.status_code == 500
    assert "db.internal" not in answer.text
    assert answer.json()["title"] == "Internal Server Error"
