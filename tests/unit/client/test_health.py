from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.client import health
from airflow_horsies.client.health import Finding, Status, check_health
from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseUnreachable,
    HorsiesError,
    ListenUnavailable,
    SchemaMissing,
)
from airflow_horsies.ledger import checks as ledger_checks
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.schema import latest_version
from airflow_horsies.models import QueueDepth, TaskPage, TaskState, TaskView, WorkerState
from airflow_horsies.testing import FakeClient
from airflow_horsies.wire import checks as wire_checks
from airflow_horsies.wire.checks import MissingPrivilege, OpenSchema, OutdatedWorker, Server
from airflow_horsies.wire.decoding import decode_task
from airflow_horsies.wire.schema import NEWEST_TESTED_VERSION, Schema
from tests.unit.driving import MOVED
from tests.unit.wire.test_decoding import task_row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATEST = latest_version()
CHECKS = [
    "connection",
    "clock",
    "notifications",
    "schema",
    "privileges",
    "ledger",
    "workers",
    "worker releases",
    "queues",
    "claims",
]
WORKER = WorkerState(
    id="w",
    hostname="host",
    pid=42,
    queues=("reports", "default"),
    processes=1,
    tasks_running=0,
    tasks_claimed=0,
    started_at=NOON,
    seen_at=NOON,
    alive=True,
)
QUEUE = QueueDepth(queue="default", ready=2, delayed=0, claimed=0, running=0, oldest_ready_at=NOON, served_by=1)
UNSERVED = replace(QUEUE, queue="nobody", ready=3, served_by=0)
INSERT = MissingPrivilege(purpose="send", missing="INSERT on horsies_tasks", remedy="GRANT INSERT …;")
CANCEL = MissingPrivilege(purpose="cancel", missing="UPDATE on horsies_tasks", remedy="GRANT UPDATE …;")


def given(value: Any) -> Any:
    if isinstance(value, HorsiesError):
        raise value
    return value


@dataclass
class Answers:
    """What the checks find; an error is raised in the place of an answer."""

    schema: Schema | HorsiesError = MOVED
    clock_offset: timedelta = timedelta()
    reached: HorsiesError | None = None
    is_read_only: bool = False
    listening: bool | HorsiesError = True
    ledger: int | HorsiesError = LATEST
    missing: list[MissingPrivilege] = field(default_factory=list)
    open_schemas: list[OpenSchema] = field(default_factory=list)
    missing_on_ledger: list[MissingPrivilege] = field(default_factory=list)
    found_workers: list[WorkerState] | HorsiesError = field(default_factory=lambda: [WORKER])
    outdated: list[OutdatedWorker] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    found_queues: list[QueueDepth] = field(default_factory=lambda: [QUEUE])
    claimed: list[TaskView] = field(default_factory=list)


class CheckedClient(FakeClient):
    """Also answers the scripts that only the checks run."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers
        self.memory.queues = {queue.queue: queue for queue in answers.found_queues}

    @property
    def schema(self) -> Schema:
        schema: Schema = given(self.answers.schema)
        return schema

    def run(self, make_script: Callable[[], Any]) -> Any:
        if make_script is wire_checks.read_server:
            given(self.answers.reached)
            return Server(
                clock=datetime.now(UTC) + self.answers.clock_offset,
                database="work",
                username="airflow",
                version="17.5",
                is_read_only=self.answers.is_read_only,
            )
        if make_script is ledger_schema.read_version:
            return given(self.answers.ledger)
        if make_script is wire_checks.find_missing_privileges:
            return self.answers.missing
        if make_script is wire_checks.find_open_schemas:
            return self.answers.open_schemas
        if make_script is ledger_checks.find_missing_privileges:
            return self.answers.missing_on_ledger
        if make_script is wire_checks.find_uncovered_classes:
            return self.answers.uncovered
        return self.answers.outdated

    def can_listen(self) -> bool:
        return bool(given(self.answers.listening))

    def read_workers(self) -> list[WorkerState]:
        workers: list[WorkerState] = given(self.answers.found_workers)
        return workers

    def list_tasks(self, **asked: Any) -> TaskPage:
        assert asked["states"] == [TaskState.CLAIMED]
        return TaskPage(tasks=tuple(self.answers.claimed[: asked["limit"]]), next=None)


def findings(**answers: Any) -> dict[str, Finding]:
    found = list(check_health(CheckedClient(Answers(**answers))))
    assert [finding.check for finding in found] == CHECKS
    return {finding.check: finding for finding in found}


def test_healthy_database_is_ok_throughout() -> None:
    found = findings()
    assert {finding.status for finding in found.values()} == {Status.OK}
    assert "host:42 serves default, reports" in found["workers"].message
    assert "database work as airflow, PostgreSQL 17.5" in found["connection"].message


def claimed(worker_id: str, **ago: float) -> TaskView:
    at = datetime.now(UTC) - timedelta(**ago)
    return decode_task(task_row(status="CLAIMED", worker_id=worker_id, claimed_at=at))


NEWER = replace(MOVED, version=NEWEST_TESTED_VERSION + 1)
USELESS = OutdatedWorker(worker_id="w", evidence="it runs horsies 0.4 or older", is_useless=True)


@pytest.mark.parametrize(
    ("answers", "check", "status", "says"),
    [
        (
            {"claimed": [claimed("w", minutes=3)]},
            "claims",
            "WARN",
            r"task \S+ since .* UTC, worker host:42\. .*restart the worker",
        ),
        ({"claimed": [claimed("w", minutes=3)] * 7}, "claims", "WARN", "and 2 more"),
        ({"claimed": [claimed("w", days=-1), claimed("dead", hours=1)]}, "claims", "OK", "No live worker holds"),
        ({"is_read_only": True}, "connection", "FAIL", "Point the connection at the primary"),
        ({"clock_offset": timedelta(seconds=4)}, "clock", "OK", "differ by 4.0 s"),
        ({"clock_offset": timedelta(seconds=9)}, "clock", "WARN", "9.0 s behind the database.*NTP"),
        ({"clock_offset": timedelta(seconds=-9)}, "clock", "WARN", "9.0 s ahead of the database"),
        ({"listening": False}, "notifications", "OK", "uses polling"),
        ({"listening": ListenUnavailable("through a pooler; set …")}, "notifications", "FAIL", "through a pooler"),
        (
            {"schema": replace(MOVED, worker_has_started=False)},
            "schema",
            "WARN",
            "No worker has ever started.*Start one",
        ),
        ({"schema": NEWER}, "schema", "FAIL", "Upgrade airflow-horsies"),
        (
            {"uncovered": ["default", "week"]},
            "schema",
            "FAIL",
            "no partition for the current time.*default, week.*Start one",
        ),
        (
            {"missing": [INSERT, CANCEL]},
            "privileges",
            "FAIL",
            r"(?s)lacks INSERT on horsies_tasks, UPDATE.*GRANT INSERT",
        ),
        ({"missing": [CANCEL]}, "privileges", "WARN", r"(?s)lacks UPDATE on horsies_tasks.*GRANT UPDATE"),
        ({"ledger": 0}, "ledger", "WARN", "do not exist yet.*airflow horsies db migrate"),
        ({"ledger": LATEST + 1}, "ledger", "FAIL", "Upgrade airflow-horsies"),
        ({"ledger": 0, "missing_on_ledger": [INSERT]}, "ledger", "FAIL", r"(?s)lacks.*GRANT INSERT"),
        ({"ledger": AccessDenied("no")}, "ledger", "FAIL", "no"),
        ({"found_workers": []}, "workers", "WARN", "None has reported in the last hour.*Start one"),
        (
            {"found_workers": [replace(WORKER, alive=False)]},
            "workers",
            "WARN",
            "last one reported at 2026-03-01 12:00:00",
        ),
        ({"found_workers": []}, "worker releases", "SKIP", "no live worker"),
        (
            {"outdated": [USELESS]},
            "worker releases",
            "FAIL",
            "host:42: it runs horsies 0.4.*never finish.*Upgrade",
        ),
        ({"outdated": [replace(USELESS, is_useless=False)]}, "worker releases", "WARN", "restart them"),
        (
            {"found_queues": [QUEUE, UNSERVED]},
            "queues",
            "WARN",
            r"'nobody' \(3 waiting, the oldest since 2026-03-01 12:00:00 UTC\). Start a worker",
        ),
        ({"found_queues": [replace(UNSERVED, ready=0, delayed=9)]}, "queues", "OK", "0 task"),
        (
            {"open_schemas": [OpenSchema(name="public", remedy="REVOKE …;")]},
            "privileges",
            "WARN",
            r"functions in schema public, and .* Run:\nREVOKE …;$",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_check_tells_what_is_wrong_and_what_to_do(answers: dict[str, Any], check: str, status: str, says: str) -> None:
    found = findings(**answers)[check]
    assert found.status == status, found
    assert re.search(says, found.message), found.message


def test_ledger_older_than_this_release_is_to_be_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "latest_version", lambda: 3)
    found = findings(ledger=2)["ledger"]
    assert found.status is Status.WARN
    assert "at version 2 of 3" in found.message


def test_nothing_more_is_checked_where_the_database_cannot_be_reached() -> None:
    first, *rest = findings(reached=DatabaseUnreachable("No such host.")).values()
    assert first.status is Status.FAIL
    assert "No such host. The settings are those of" in first.message
    assert {finding.status for finding in rest} == {Status.SKIP}
    assert {finding.message for finding in rest} == {"Not checked, because the check of the connection failed."}


def test_what_needs_the_schema_is_skipped_where_there_is_none() -> None:
    found = findings(schema=SchemaMissing("no tables"))
    skipped = [name for name, finding in found.items() if finding.status is Status.SKIP]
    assert skipped == ["privileges", "workers", "worker releases", "queues", "claims"]
    assert found["ledger"].status is Status.OK


def test_privilege_that_hides_the_schema_is_told() -> None:
    found = findings(schema=AccessDenied("permission denied for table horsies_schema_version"), missing=[INSERT])
    assert (found["schema"].status, found["privileges"].status) == (Status.FAIL, Status.FAIL)


def test_schema_newer_than_tested_is_read_on() -> None:
    found = findings(schema=NEWER)
    assert (found["schema"].status, found["workers"].status) == (Status.FAIL, Status.OK)


def test_check_that_fails_does_not_stop_those_beside_it() -> None:
    found = findings(found_workers=AccessDenied("permission denied for table horsies_worker_states"))
    assert (found["workers"].status, found["queues"].status) == (Status.FAIL, Status.OK)
