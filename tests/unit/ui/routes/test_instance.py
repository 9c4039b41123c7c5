from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import httpx
import pytest
from airflow.sdk.log import mask_secret

from airflow_horsies.core.moments import Moments
from airflow_horsies.models import Attempt, AttemptRecord, LogCursor, LogLine, Progress, TaskState
from tests.unit.ui.rig import NOW, ROUTES, URL, AllRights, Client, FakePages, id_of, submission, view

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui import api
    from airflow_horsies.ui.answers import MAX_TEXT_CHARS
    from airflow_horsies.ui.routes import instance as instance_routes


def test_rounds_begin_with_the_newest_and_counts_cover_what_was_submitted_last(
    client: Client, pages: FakePages
) -> None:
    pages.submissions = [submission(0), *(submission(n, life=2) for n in range(100)), submission(7, life=2, round_=2)]
    states = {each.horsies_task_id: TaskState.COMPLETED for each in pages.submissions}
    others = {"2-1-7": TaskState.FAILED, "2-1-0": TaskState.RUNNING, "1-1-0": TaskState.FAILED}
    states |= {id_of(name): state for name, state in others.items()}
    pages.put(*(view(task_id, state) for task_id, state in states.items() if task_id != id_of("2-1-99")))
    shown = client.get(URL).json()
    assert shown["counts"] == {"RUNNING": 1, "COMPLETED": 98}
    assert (shown["positions"], shown["past_retention"]) == (100, 1)
    assert [each["horsies_task_id"] for each in shown["submissions"]] == [id_of("2-1-0"), id_of("1-1-0")]
    item = client.get(URL, params={"position": 7}).json()
    assert [each["horsies_task_id"] for each in item["submissions"]] == [id_of("2-2-7"), id_of("2-1-7")]
    assert client.get(URL, params={"position": 100}).status_code == 404


def test_the_database_sorts_filters_and_pages_the_items_of_a_batch(client: Client, pages: FakePages) -> None:
    pages.submissions = [submission(n) for n in range(10)]
    asked = {"sort": "duration", "descending": True, "state": "FAILED", "limit": 3, "offset": 8}
    answer = client.get(f"{URL}/items", params=asked).json()
    assert pages.ordered == [{"sort": "duration", "descending": True, "state": TaskState.FAILED}]
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
def test_what_is_asked_for_is_bounded(client: Client, pages: FakePages, query: str) -> None:
    answer = client.get(f"{URL}{'' if query.startswith('?') else '/'}{query}")
    assert answer.status_code == 422
    assert pages.asked == []


def test_lines_go_on_after_the_last_that_was_seen(client: Client, pages: FakePages) -> None:
    pages.memory.lines[id_of("1-1-0")] = [
        LogLine(attempt=attempt, number=number, logged_at=NOW, level="INFO", text=f"{attempt}.{number}")
        for attempt in (1, 2)
        for number in (1, 2, 3)
    ]
    log = client.get(URL, params={"after_attempt": 1, "after_number": 2, "lines": 2}).json()["log"]
    assert [line["text"] for line in log["lines"]] == ["1.3", "2.1"]
    assert log["more"]
    assert pages.read_after == [(id_of("1-1-0"), LogCursor(1, 2), 2)]


def test_values_of_signals_and_callbacks_are_for_those_who_may_read_values(
    pages: FakePages, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def read_moments(self: FakePages, key: Any, sent: Any, *, with_values: bool) -> Moments:
        asked.append(with_values)
        return Moments()

    monkeypatch.setattr(FakePages, "read_moments", read_moments)
    client.get(URL)
    monkeypatch.setattr(AllRights, "may_read_values", lambda self, dag_id: False)
    client.get(URL)
    assert asked == [True, False]


def test_lines_are_for_those_who_may_read_logs(
    client: Client, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllRights, "may_read_log", lambda self, dag_id: False)
    pages.memory.lines[id_of("1-1-0")] = [LogLine(attempt=1, number=1, logged_at=NOW, level="INFO", text="said")]
    log = client.get(URL).json()["log"]
    assert (log["may_read"], log["lines"]) == (False, [])


def test_a_cancel_names_an_item_and_reaches_its_newest_task(client: Client, pages: FakePages) -> None:
    pages.submissions = [submission(0), submission(1), submission(1, round_=2)]
    headers = {"origin": "http://airflow.test"}

    def cancel(position: int, name: str) -> httpx.Response:
        item = {"position": position, "horsies_task_id": id_of(name), "number": None}
        return client.request("POST", f"{URL}/cancel", json={"item": item}, headers=headers)

    assert cancel(1, "1-1-1").status_code == 409
    assert cancel(0, "1-2-1").status_code == 409
    assert pages.cancelled == []
    answer = cancel(1, "1-2-1")
    assert answer.json() == {"outcomes": {"CANCELLED": 1}, "past_retention": 0}
    assert pages.cancelled == [id_of("1-2-1")]
    assert cancel(2, "1-1-2").status_code == 404
    assert client.request("POST", f"{URL}/cancel", json={}, headers=headers).status_code == 200
    assert pages.cancelled == [id_of("1-2-1"), id_of("1-1-0"), id_of("1-2-1")]


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
    client: Client, pages: FakePages, headers: dict[str, str], status: int
) -> None:
    answer = client.request("POST", f"{URL}/cancel", content="{}", headers=headers)
    assert answer.status_code == status
    assert bool(pages.cancelled) is (status == 200)


@pytest.mark.parametrize(
    "body", ["", "x", "null", "[]", '{"dag_id": "other"}', '{"position": 0}', '{"item": {"position": 0}}']
)
def test_a_body_that_is_no_cancel_is_refused_before_it_is_logged(client: Client, pages: FakePages, body: str) -> None:
    logged: list[None] = []
    (route,) = [route for route in ROUTES if route.path.endswith("{map_index}/cancel")]
    calls = [each.call for each in route.dependant.dependencies]
    (log_action,) = [call for call in calls if getattr(call, "__name__", "") == "log_action"]
    api.app.dependency_overrides[log_action] = lambda: logged.append(None)
    headers = {"origin": "http://airflow.test", "content-type": "application/json"}
    answer = client.request("POST", f"{URL}/cancel", content=body, headers=headers)
    assert (answer.status_code, pages.cancelled, logged) == (422, [], [])


def test_a_task_is_shown_with_its_attempts_and_pieces_of_time(client: Client, pages: FakePages) -> None:
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
    failed = view(id_of("1-1-0"), TaskState.FAILED, finished_at=NOW, error_code="TRY_AGAIN", attempts=attempts)
    pages.put(failed)
    (shown,) = client.get(URL).json()["submissions"]
    assert (shown["position"], shown["life"], shown["round"], shown["try_number"]) == (0, 1, 1, 1)
    assert shown["submitted_at"] == NOW.isoformat()
    assert (shown["task"]["state"], shown["task"]["error_code"]) == ("FAILED", "TRY_AGAIN")
    assert [(each["attempt"], each["will_retry"], each["duration_seconds"]) for each in shown["attempts"]] == [
        (1, True, 1.5),
        (2, False, 1.5),
    ]
    assert [each["kind"] for each in shown["segments"]] == ["waiting", "running", "backing off", "running"]


def test_what_workers_tell_is_shown_also_past_the_retention_of_the_task(client: Client, pages: FakePages) -> None:
    pages.memory.records = {
        id_of("1-1-0"): (
            AttemptRecord(number=1, worker_id="w", hostname="h", pid=7, started_at=NOW, metrics={"jobs": 3}),
        )
    }
    pages.memory.progress = {id_of("1-1-0"): Progress(attempt=1, done=4, total=10, stage="sort", updated_at=NOW)}
    for is_kept in (True, False):
        pages.put(*([view(id_of("1-1-0"))] if is_kept else []))
        (shown,) = client.get(URL).json()["submissions"]
        (record,) = shown["attempts"]
        assert (record["attempt"], record["outcome"], record["metrics"]) == (1, "LOST", {"jobs": 3})
        assert (shown["progress"]["done"], shown["progress"]["fraction"]) == (4, 0.4)


def test_what_a_task_says_is_masked_and_cut(client: Client, pages: FakePages) -> None:
    mask_secret("correct-horse-battery")
    said = f"{'x' * (MAX_TEXT_CHARS - 10)}correct-horse-battery and more"
    pages.put(view(id_of("1-1-0"), TaskState.FAILED, failed_reason=said))
    answer = client.get(URL)
    (shown,) = answer.json()["submissions"]
    assert len(shown["task"]["failed_reason"]) == MAX_TEXT_CHARS
    assert "correct" not in answer.text


def test_hostile_text_is_only_text(client: Client, pages: FakePages) -> None:
    hostile = "<script>alert(1)</script>\x00\x1b[31m\u202e\u2028 half a pair \ud800"
    pages.put(view(id_of("1-1-0"), TaskState.FAILED, failed_reason=hostile))
    answer = client.get(URL)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    assert answer.json()["submissions"][0]["task"]["failed_reason"] == hostile


def test_nothing_submitted_is_told_as_such(client: Client, pages: FakePages) -> None:
    pages.submissions = []
    answer = client.get(URL)
    assert answer.status_code == 200
    assert answer.json()["submissions"] == []
    assert [each["state"] for each in answer.json()["tries"]] == ["running"]
    for path in ("/items", "/values", "/log.txt"):
        assert client.get(f"{URL}{path}").status_code == 404
