from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_horsies.client import waiting
from airflow_horsies.exceptions import AccessDenied, DatabaseUnreachable, HorsiesError
from airflow_horsies.models import AttemptRecord, LogCursor, LogLine, Progress, TaskNews
from airflow_horsies.testing import FakeClient
from airflow_horsies.triggers import task_log
from airflow_horsies.triggers.task_log import TaskLog, load_seen, store_seen

ONE = "0198a0de-0000-7000-8000-000000000001"
TWO = "0198a0de-0000-7000-8000-000000000002"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOGGER = logging.getLogger("the task")


class Ledger(FakeClient):
    """Counts how often lines are read; ``error`` is raised instead, and ``told`` are the records of each look."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.error: HorsiesError | None = None
        self.told: list[dict[str, tuple[AttemptRecord, ...]]] = []

    def write(self, task_id: str, count: int) -> None:
        lines = self.memory.lines.setdefault(task_id, [])
        lines += [line(len(lines) + 1 + index) for index in range(count)]

    def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        self.reads += 1
        if self.error:
            raise self.error
        return super().read_news(seen)

    def read_attempts(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        return self.told.pop(0)


def line(number: int, *, attempt: int = 1, level: str = "INFO", text: str | None = None) -> LogLine:
    return LogLine(attempt=attempt, number=number, logged_at=NOON, level=level, text=text or f"line {number}")


def make_log(*task_ids: str, **options: Any) -> TaskLog:
    return TaskLog(LOGGER, task_ids or (ONE,), options.pop("seen", {}), **options)


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(task_log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(task_log.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.mark.parametrize(
    ("level", "logged"),
    [
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("warning", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("CRITICAL", logging.CRITICAL),
        ("STDOUT", logging.INFO),
        ("NOTSET", logging.INFO),
        ("", logging.INFO),
    ],
)
def test_line_is_logged_once_at_its_level_with_its_attempt(
    level: str, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    shown = make_log()
    for _ in range(2):
        shown.show({ONE: TaskNews(lines=(line(1, attempt=2, level=level, text="50 % {done} %s"),))})
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logged, "[attempt 2] 50 % {done} %s")
    assert shown.seen == {ONE: LogCursor(2, 1)}


def test_numbered_tasks_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress(attempt=1, done=4, total=10)
    make_log(TWO, ONE, numbered=True).show({ONE: TaskNews(lines=(line(1),), progress=progress)})
    assert caplog.messages == ["[item 1, attempt 1] line 1", "[item 1] Progress: 40 % (4 of 10)"]


def test_progress_is_shown_when_it_changes_and_not_too_often(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    shown = make_log()
    for second in range(40):
        clock[0] = 1_000.0 + second
        done = min(second, 25)
        shown.show({ONE: TaskNews(progress=Progress(attempt=1, done=done, total=100, stage="stage 3 of 7"))})
    assert caplog.messages == [f"Progress: {percent} % ({percent} of 100), stage 3 of 7" for percent in (0, 10, 20, 25)]


def test_what_is_left_is_read_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    client = Ledger()
    client.write(ONE, 2_500)
    client.write(TWO, 3)
    shown = make_log(ONE, TWO, seen={ONE: LogCursor(1, 10)})
    shown.finish(client)
    assert shown.seen == {ONE: LogCursor(1, 2_500), TWO: LogCursor(1, 3)}
    assert len(caplog.messages) == 2_493
    assert client.reads == 3


def test_progress_that_a_killed_worker_left_behind_is_not_shown_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    client = Ledger()
    client.memory.progress[ONE] = Progress(attempt=1, done=4, total=10)
    make_log().finish(client)
    assert caplog.messages == []
    make_log().follow(client)
    assert caplog.messages == ["Progress: 40 % (4 of 10)"]


def test_cancelled_task_has_a_moment_for_its_last_lines(clock: list[float]) -> None:
    running = AttemptRecord(number=1, worker_id="w", hostname="h", pid=1, started_at=NOON)
    stopped = AttemptRecord(number=1, worker_id="w", hostname="h", pid=1, started_at=NOON, finished_at=NOON)
    client = Ledger()
    client.told = [{ONE: (stopped, running), TWO: (stopped,)}, {ONE: (running,)}, {ONE: (stopped,)}]
    make_log(ONE, TWO).finish(client, cancelled=[ONE, TWO])
    assert client.told == []
    client.told = [{ONE: (running,)}] * 1_000
    make_log(ONE).finish(client, cancelled=[ONE])
    assert clock[0] - 1_000 == pytest.approx(0.5 + waiting.STOP_SECONDS)


def test_log_that_cannot_be_read_is_told_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client = Ledger()
    client.error = AccessDenied("no SELECT for you")
    shown = make_log()
    for _ in range(3):
        shown.follow(client)
    assert caplog.messages == ["The log of the task cannot be shown: no SELECT for you"]
    assert client.reads == 1
    client.error = DatabaseUnreachable("gone")
    make_log().finish(client)
    assert caplog.messages[1:] == ["The last log lines of the task cannot be shown: gone"]


def test_lost_database_is_left_to_whoever_waits_on_it() -> None:
    client = Ledger()
    client.error = DatabaseUnreachable("gone")
    shown = make_log()
    with pytest.raises(DatabaseUnreachable):
        shown.follow(client)
    client.error = None
    client.write(ONE, 1)
    shown.follow(client)
    assert shown.seen == {ONE: LogCursor(1, 1)}


def test_what_was_seen_survives_json() -> None:
    seen = {ONE: LogCursor(2, 17)}
    assert load_seen(json.loads(json.dumps(store_seen(seen)))) == seen
