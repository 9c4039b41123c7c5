"""Every answer of the routes is what the payloads say, and so what the page scripts are checked against."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage
from airflow_horsies.core.report import Report
from airflow_horsies.core.task import TaskException, TaskFailure, TaskResult
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.models import (
    Attempt,
    AttemptRecord,
    LogCursor,
    LogLine,
    Progress,
    Submission,
    TaskState,
)
from tests.docs.payload_types import TYPES_FILE, answer_schema, render_types
from tests.unit.ui.rig import NOW, URL, Client, FakePages, id_of, submission, view

# isort: split
from airflow_horsies.ui import clients
from airflow_horsies.ui.routes import overview as overview_routes

RUN_URL = "/api/dags/sales/gantt/manual__1"


def at(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def attempt(number: int, outcome: str, **changed: Any) -> Attempt:
    return Attempt(
        number=number,
        outcome=outcome,
        will_retry=outcome == "FAILED" and number == 1,
        started_at=at(2 * number),
        finished_at=at(2 * number + 1.5),
        worker_id="worker-1",
        hostname="host",
        pid=7,
        **changed,
    )


class FullPages(FakePages):
    """Has what the other pages read, too."""

    deployment = Deployment("default", "")
    records: Mapping[str, tuple[AttemptRecord, ...]]
    progress: Mapping[str, Progress]
    lines: list[LogLine]
    queues: list[QueueDepth]
    workers: list[WorkerState]

    def read_attempts(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        return dict(self.records)

    def read_progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        return dict(self.progress)

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = 1_000) -> list[LogLine]:
        return self.lines

    def read_submissions_of_run(self, dag_id: str, run_id: str, *, limit: int) -> list[Submission]:
        return self.submissions

    def read_submissions_of_tasks(self, ids: Collection[str]) -> list[Submission]:
        return [each for each in self.submissions if each.horsies_task_id in ids]

    def list_recent_tasks(self, *, limit: int) -> TaskPage:
        return TaskPage(tasks=tuple(self.memory.tasks.values()), next=None)

    def find_failed(self, *, window: int, limit: int, before: PageCursor | None) -> FailedTasks:
        ids = tuple(task.id for task in self.memory.tasks.values() if task.state is TaskState.FAILED)
        return FailedTasks(ids=ids, searched_to=NOW, next=PageCursor(at=NOW, task_id="the-last"))

    def read_queues(self) -> list[QueueDepth]:
        return self.queues

    def read_workers(self) -> list[WorkerState]:
        return self.workers


@pytest.fixture
def full(client: Client, monkeypatch: pytest.MonkeyPatch) -> FullPages:
    """Every part of every answer is there, and every part that can be missing is missing somewhere."""
    pages = FullPages()
    monkeypatch.setattr(clients, "PageClient", pages.connect)
    failure = TaskFailure(
        error_code="BAD", message="no", data={"row": 3}, exception=TaskException(type="E", message="m", traceback="T")
    )
    pages.submissions = [
        submission(0, life=1),
        replace(submission(0, life=2), good_until=at(60)),
        submission(1, life=2),
        submission(2, life=2),
        submission(3, life=2),
    ]
    pages.put(
        view(id_of("1-1-0"), TaskState.CANCELLED, claimed_at=at(1), started_at=at(2), finished_at=at(6)),
        view(
            id_of("2-1-0"),
            TaskState.FAILED,
            claimed_at=at(1),
            started_at=at(4),
            finished_at=at(5.5),
            error_code="BAD",
            failed_reason="given up",
            good_until=at(60),
            attempts=(
                attempt(1, "FAILED", error_code="FLAKY", failed_reason="killed"),
                attempt(2, "FAILED", error_code="BAD", error_message="no", failed_reason="f"),
            ),
            kwargs={"a": 1, "b": "text"},
            result=TaskResult(error=failure),
        ),
        view(id_of("2-1-1"), TaskState.RUNNING, claimed_at=at(1), started_at=at(2), worker_id="w", hostname="h", pid=1),
        view(
            id_of("2-1-2"),
            attempts=(attempt(1, "COMPLETED"),),
            started_at=at(2),
            finished_at=at(3.5),
            result=TaskResult(ok={"rows": 3}),
        ),
    )
    pages.records = {
        id_of("1-1-0"): (
            AttemptRecord(number=1, worker_id="w", hostname="h", pid=7, started_at=at(2), metrics={"jobs": 3}),
        ),
        id_of("2-1-0"): (
            AttemptRecord(
                number=2,
                worker_id="w",
                hostname="h",
                pid=7,
                started_at=at(4),
                metrics={"input_bytes": 3.5, "note": "x"},
            ),
        ),
    }
    pages.progress = {id_of("2-1-0"): Progress(attempt=1, done=4, total=10, stage="sort", updated_at=NOW)}
    pages.lines = [LogLine(attempt=1, number=1, logged_at=NOW, level="INFO", text="said")]
    pages.queues = [
        QueueDepth(queue="default", ready=1, delayed=2, claimed=3, running=4, oldest_ready_at=NOW, served_by=1),
        QueueDepth(queue="quiet", ready=0, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=0),
    ]
    worker = WorkerState(
        id="w",
        hostname="h",
        pid=1,
        queues=("default", "quiet"),
        processes=2,
        tasks_running=1,
        tasks_claimed=0,
        started_at=NOW,
        seen_at=NOW,
        alive=True,
    )
    pages.workers = [worker, replace(worker, id="v", memory_mb=12.5, cpu_percent=3.0, alive=False)]
    reports = [Report(name="r", period_start=NOW, period_end=at(9), location="/x", made_at=NOW)]
    monkeypatch.setattr(overview_routes, "cluster", overview_routes.Shared(overview_routes._read_cluster))
    monkeypatch.setattr(overview_routes.ledger, "list_reports", lambda client, *, limit: reports)
    monkeypatch.setattr(overview_routes, "may_read_connection", lambda user: True)
    monkeypatch.setattr(overview_routes, "read_states", lambda session, keys: dict.fromkeys(keys, "failed"))
    fernet = Fernet(Fernet.generate_key())
    monkeypatch.setattr(overview_routes, "get_fernet", lambda: fernet)
    return pages


def check(answer: httpx.Response, name: str) -> None:
    """Against the schema of one payload."""
    schema = {**answer_schema(), "anyOf": [{"$ref": f"#/$defs/{name}"}]}
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(answer.json())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((f"{URL}?position={position}", "Instance") for position in range(4)),
        (f"{URL}?life=1&round=1", "Instance"),
        (f"{URL}/items", "Items"),
        *((f"{URL}/values?position={position}", "Values") for position in range(4)),
        (RUN_URL, "Run"),
        ("/api/overview", "Overview"),
        ("/api/failures", "Failures"),
        (f"{URL}?position=9", "Problem"),
        (f"{URL}/items?limit=0", "Problem"),
        ("/api/none", "Problem"),
    ],
)
def test_answer_has_the_fields_of_its_payload(client: Client, full: FullPages, path: str, name: str) -> None:
    check(client.get(path), name)


def test_a_cancel_is_answered_with_its_payload(client: Client, full: FullPages) -> None:
    headers = {"origin": "http://airflow.test"}
    check(client.request("POST", f"{URL}/cancel", json={}, headers=headers), "Cancelled")


def test_what_is_no_longer_kept_leaves_its_fields_behind(client: Client, full: FullPages) -> None:
    full.put()
    check(client.get(URL), "Instance")
    check(client.get(f"{URL}/items"), "Items")
    check(client.get(RUN_URL), "Run")
    full.submissions = full.submissions[1:2]
    check(client.get(RUN_URL), "Run")


def test_nothing_submitted_has_a_payload_of_its_own(client: Client, full: FullPages) -> None:
    full.submissions = []
    check(client.get(URL), "EmptyInstance")
    check(client.get(RUN_URL), "Run")


@pytest.mark.parametrize("docs_url", ["", "https://docs.example.com/"])
def test_error_code_links_to_its_explanation(
    client: Client, full: FullPages, monkeypatch: pytest.MonkeyPatch, docs_url: str
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__DOCS_URL", docs_url)
    task = full.memory.tasks[id_of("2-1-0")]
    attempts = (task.attempts[0], replace(task.attempts[1], error_code="BAD_INPUT"))
    full.memory.tasks[task.id] = replace(task, error_code="BAD_INPUT", attempts=attempts)
    url = "https://docs.example.com/reference/errors.html#bad_input" if docs_url else None
    newest = client.get(URL).json()["submissions"][0]
    assert newest["task"]["error_url"] == url
    # The first attempt has a code that the documentation does not know.
    assert [each["error_url"] for each in newest["attempts"]] == [None, url]
    assert client.get(f"{URL}/items").json()["items"][0]["error_url"] == url
    assert client.get(RUN_URL).json()["rows"][0]["error_url"] == url
    failures = client.get("/api/failures").json()["failures"]
    assert {each["error_code"]: each["error_url"] for each in failures} == {"BAD_INPUT": url}


def test_a_field_too_many_or_too_few_is_noticed(client: Client, full: FullPages) -> None:
    answer = client.get(f"{URL}/values")
    for changed in ({**answer.json(), "more": 1}, {"kwargs": None}):
        with pytest.raises(ValidationError):
            check(httpx.Response(200, json=changed), "Values")


def test_the_types_of_the_page_scripts_are_those_of_the_payloads() -> None:
    assert TYPES_FILE.read_text() == render_types(), "Run 'make payloads'."
