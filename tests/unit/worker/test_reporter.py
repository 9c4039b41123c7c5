from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.client import reporting
from airflow_horsies.db.statement import Rows
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError, DatabaseUnreachable
from airflow_horsies.worker import attempt as attempt_module
from airflow_horsies.worker import reporter as reporter_module
from airflow_horsies.worker.attempt import Assignment, RunningAttempt, StopReason
from airflow_horsies.worker.logs import AttemptLog
from airflow_horsies.worker.reporter import Reporter, database_of
from tests.unit.worker.tables import Tables, eventually

SECRET = "s3cret-word"
URL = f"postgresql+psycopg://worker:{SECRET}@db:6432/horsies"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Worker:
    """A reporter on its thread, what it reports to, and what it asked to stop."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.stopped: list[tuple[str, StopReason]] = []
        self.reporter = Reporter(database_of(URL), stop=self._stop)
        self.attempts: list[RunningAttempt] = []
        self.reporter.start()

    def begin(self, task_id: str = "t1", *, timeout_seconds: float | None = None, **fields: Any) -> RunningAttempt:
        attempt = RunningAttempt(Assignment(task_id, "w1", NOON, timeout_seconds), AttemptLog(100), **fields)
        self.attempts.append(attempt)
        self.reporter.begin(attempt)
        return attempt

    def end(self, attempt: RunningAttempt, outcome: str = "COMPLETED", *error: str) -> float:
        """How many seconds the task had to wait for its last lines."""
        attempt.end(outcome, *error)
        began = time.monotonic()
        self.reporter.end(attempt)
        return time.monotonic() - began

    def _stop(self, attempt: RunningAttempt, reason: StopReason) -> None:
        if attempt.stop_reason is None:
            attempt.stop_reason = reason
            self.stopped.append((attempt.task_id, reason))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tables: Tables) -> Iterator[Worker]:
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(reporter_module, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(reporter_module, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(reporter_module, "END_SECONDS", 5.0)
    monkeypatch.setattr(attempt_module, "SHOWN_AFTER_SECONDS", 0.02)
    worker = Worker(tables)
    yield worker
    # Its thread waits for ever once there is nothing left to tell.
    tables.down = None
    tables.hanging.set()
    for attempt in worker.attempts:
        if attempt.outcome is None:
            worker.end(attempt)
    worker.reporter.flush()
    assert not worker.reporter._is_behind


def test_an_attempt_is_told_from_its_beginning_to_its_end(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.log.add("INFO", ["first", "second"])
    eventually(lambda: len(tables.texts("t1")) == 2)
    attempt.log.add("ERROR", ["last"])
    attempt.metrics = {"jobs": 1}
    worker.end(attempt, "FAILED", "BAD_INPUT", "day is missing")
    assert tables.texts("t1") == [(1, "first"), (2, "second"), (3, "last")]
    begun, ended = tables.begun["t1", 1], tables.ended["t1", 1]
    assert (begun["worker_id"], begun["started_at"]) == ("w1", attempt.started_at)
    assert (ended["outcome"], ended["error_code"], ended["error_message"]) == (
        "FAILED",
        "BAD_INPUT",
        "day is missing",
    )
    assert (ended["finished_at"], ended["metrics"]) == (attempt.finished_at, '{"jobs": 1}')
    assert attempt.reported.is_set()


def test_the_tables_are_made_once(worker: Worker, tables: Tables) -> None:
    for task_id in ("t1", "t2", "t3"):
        worker.end(worker.begin(task_id), "FAILED")
    assert (tables.migrated, len(tables.ended)) == (1, 3)


def test_everything_is_written_when_the_end_returns(worker: Worker, tables: Tables) -> None:
    for number in range(20):
        attempt = worker.begin(f"t{number}")
        attempt.log.add("INFO", ["line"])
        worker.end(attempt)
        assert tables.texts(f"t{number}") == [(1, "line")]
        assert (f"t{number}", 1) in tables.ended


def test_an_attempt_has_the_number_of_its_retries(worker: Worker, tables: Tables) -> None:
    tables.retries["t1"] = 2
    attempt = worker.begin()
    attempt.log.add("INFO", ["line"])
    worker.end(attempt)
    assert attempt.number == 3
    assert (list(tables.ended), tables.texts("t1", 3)) == ([("t1", 3)], [(1, "line")])


def test_line_numbers_go_on_where_an_earlier_run_of_the_attempt_ended(worker: Worker, tables: Tables) -> None:
    tables.lines["t1", 1] = {1: "of the first run", 2: "of the first run"}
    attempt = worker.begin()
    attempt.log.add("INFO", ["of the second run"])
    worker.end(attempt)
    assert tables.texts("t1") == [(1, "of the first run"), (2, "of the first run"), (3, "of the second run")]


def test_lines_are_written_once_though_the_connection_broke_after_they_were(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    eventually(lambda: attempt.number == 1)
    tables.breaking = [DatabaseUnreachable("gone"), DatabaseUnreachable("gone again")]
    attempt.log.add("INFO", ["first", "second"])
    eventually(lambda: not tables.breaking)
    attempt.log.add("INFO", ["third"])
    worker.end(attempt)
    eventually(attempt.reported.is_set)
    assert tables.texts("t1") == [(1, "first"), (2, "second"), (3, "third")]


@pytest.mark.parametrize("error", [DatabaseUnreachable("away"), DatabaseBusy("locked")])
def test_nothing_is_lost_while_the_database_is_away(worker: Worker, tables: Tables, error: DatabaseError) -> None:
    first = worker.begin("t1")
    first.log.add("INFO", ["before"])
    eventually(lambda: tables.texts("t1"))
    tables.down = error
    first.log.add("INFO", ["meanwhile"])
    runs = tables.runs
    eventually(lambda: tables.runs > runs + reporter_module.MAX_FAILURES + 1)
    worker.end(first)
    second = worker.begin("t2")
    second.log.add("INFO", ["of the second"])
    worker.end(second, "FAILED", "BAD_INPUT", "boo")
    tables.down = None
    eventually(lambda: first.reported.is_set() and second.reported.is_set())
    assert tables.texts("t1") == [(1, "before"), (2, "meanwhile")]
    assert tables.texts("t2") == [(1, "of the second")]
    assert {key: ended["outcome"] for key, ended in tables.ended.items()} == {
        ("t1", 1): "COMPLETED",
        ("t2", 1): "FAILED",
    }


def test_an_attempt_that_began_while_the_database_was_away_is_told_in_full(worker: Worker, tables: Tables) -> None:
    tables.down = DatabaseUnreachable("away")
    attempt = worker.begin()
    attempt.log.add("INFO", ["line"])
    eventually(lambda: tables.runs >= 2)
    tables.down = None
    eventually(lambda: tables.texts("t1"))
    worker.end(attempt)
    assert (tables.texts("t1"), list(tables.ended)) == ([(1, "line")], [("t1", 1)])


def test_an_error_that_is_none_of_ours_does_not_end_the_reports(worker: Worker, tables: Tables) -> None:
    tables.down = RuntimeError("a bug")
    attempt = worker.begin()
    attempt.log.add("INFO", ["line"])
    eventually(lambda: tables.runs >= 1)
    tables.down = None
    eventually(lambda: tables.texts("t1"))


def test_an_attempt_that_cannot_be_written_does_not_block_the_others(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = tables._end_attempt

    def refuse_bad(params: Mapping[str, Any]) -> Rows:
        if params["horsies_task_id"] == "bad":
            raise DatabaseError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        return write(params)

    monkeypatch.setattr(tables, "_end_attempt", refuse_bad)
    worker.end(worker.begin("bad"), "FAILED", "X", "a\x00b")
    worker.end(worker.begin("good"))
    eventually(lambda: list(tables.ended) == [("good", 1)])


def test_lines_of_an_attempt_that_was_given_up_are_not_the_next_ones(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporter_module, "END_SECONDS", 0.0)
    first = worker.begin("first")
    eventually(lambda: first.number == 1)
    tables.down = DatabaseUnreachable("away")
    first.log.add("INFO", ["of the first"])
    eventually(lambda: worker.reporter._retry_at > 0)
    worker.end(first)
    others = [f"t{number}" for number in range(reporter_module.MAX_UNREPORTED)]
    for task_id in others:
        worker.end(worker.begin(task_id), "FAILED")
    assert "Discarded the unwritten report of task first" in caplog.text
    tables.down = None
    eventually(lambda: not worker.reporter._unreported)
    assert {task_id for task_id, _ in tables.ended} == set(others)
    assert tables.lines == {}


def test_the_end_waits_a_bounded_time_for_a_database_that_hangs(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "END_SECONDS", 0.2)
    attempt = worker.begin()
    eventually(lambda: attempt.number == 1)
    tables.hanging.clear()
    attempt.log.add("INFO", ["line"])
    assert 0.15 < worker.end(attempt) < 3
    tables.hanging.set()
    eventually(attempt.reported.is_set)
    assert tables.texts("t1") == [(1, "line")]


def test_the_end_does_not_wait_for_a_database_that_is_known_to_be_away(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "RETRY_SECONDS", 2.0)
    tables.down = DatabaseUnreachable("away")
    attempt = worker.begin()
    eventually(lambda: tables.runs >= 1 and worker.reporter._retry_at > 0)
    assert worker.end(attempt) < 1
    tables.down = None


def test_a_database_that_is_away_is_not_asked_all_the_time(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "RETRY_SECONDS", 0.5)
    tables.down = DatabaseUnreachable("away")
    attempt = worker.begin()
    for _ in range(40):
        attempt.log.add("INFO", ["line"])
        time.sleep(0.01)
    assert tables.runs <= 2


def test_progress_is_written_while_the_attempt_runs(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.progress = (1, 4, "reading")
    eventually(lambda: tables.progress)
    attempt.progress = (2, 4, "writing")
    eventually(lambda: len(tables.progress) > 1)
    written = [(row["attempt"], row["done"], row["total"], row["stage"]) for row in tables.progress]
    assert written == [(1, 1, 4, "reading"), (1, 2, 4, "writing")]
    assert all(row["horsies_task_id"] == "t1" for row in tables.progress)


def test_progress_that_is_told_during_a_report_is_in_the_next_one(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = worker.begin()
    eventually(lambda: attempt.number == 1)
    write = tables._write_progress

    def write_while_the_task_goes_on(params: Mapping[str, Any]) -> Rows:
        if not tables.progress:
            attempt.progress = (2, 2, "done")
        return write(params)

    monkeypatch.setattr(tables, "_write_progress", write_while_the_task_goes_on)
    attempt.progress = (1, 2, None)
    eventually(lambda: len(tables.progress) == 2)
    assert [row["done"] for row in tables.progress] == [1, 2]


def test_lines_in_buffers_are_asked_for_before_each_report(tables: Tables) -> None:
    buffered = ["line"]
    attempt = RunningAttempt(Assignment("t1", "w1", NOON, None), AttemptLog(10))

    def flush() -> None:
        while buffered:
            attempt.log.add("INFO", [buffered.pop()])

    reporter = Reporter(database_of(URL), stop=pytest.fail, before_report=flush)
    reporter.start()
    reporter.begin(attempt)
    eventually(lambda: tables.texts("t1") == [(1, "line")])
    attempt.end("COMPLETED")
    reporter.end(attempt)


def test_an_attempt_is_stopped_when_that_is_asked_for(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    eventually(lambda: attempt.number == 1)
    assert worker.stopped == []
    tables.cancelled.add("t1")
    eventually(lambda: worker.stopped)
    assert worker.stopped == [("t1", StopReason.CANCELLED)]


def test_an_attempt_is_stopped_when_horsies_has_taken_it_away(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    eventually(lambda: attempt.number == 1)
    tables.lost.add("t1")
    eventually(lambda: worker.stopped)
    assert worker.stopped == [("t1", StopReason.CLAIM_LOST)]


def test_an_attempt_that_was_taken_away_before_it_was_told_is_stopped_and_leaves_nothing(
    worker: Worker, tables: Tables
) -> None:
    tables.lost.add("t1")
    attempt = worker.begin()
    attempt.log.add("INFO", ["line"])
    eventually(lambda: worker.stopped)
    worker.end(attempt, "CANCELLED")
    assert attempt.reported.is_set()
    assert worker.stopped == [("t1", StopReason.CLAIM_LOST)]
    assert (tables.lines, tables.ended) == ({}, {})
    worker.end(worker.begin("t2"), "FAILED")
    assert list(tables.ended) == [("t2", 1)]


def test_an_attempt_is_stopped_when_its_time_is_up_also_while_the_database_is_away(
    worker: Worker, tables: Tables
) -> None:
    tables.down = DatabaseUnreachable("away")
    attempt = worker.begin(timeout_seconds=60)
    attempt.started -= 59
    eventually(lambda: worker.stopped)
    assert worker.stopped == [("t1", StopReason.TIMED_OUT)]


def test_an_attempt_that_could_not_be_stopped_is_stopped_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[StopReason] = []

    def refuse(attempt: RunningAttempt, reason: StopReason) -> None:
        asked.append(reason)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker.reporter, "_stop", refuse)
    attempt = worker.begin(timeout_seconds=60)
    attempt.started -= 59
    eventually(lambda: len(asked) > 1)
    assert set(asked) == {StopReason.TIMED_OUT}


def test_an_attempt_is_stopped_when_its_good_until_has_passed(worker: Worker, tables: Tables) -> None:
    tables.good_until = NOON
    worker.begin(stops_at_good_until=True)
    eventually(lambda: worker.stopped)
    assert worker.stopped == [("t1", StopReason.GOOD_UNTIL_PASSED)]


def test_the_database_is_reached_as_horsies_url_says() -> None:
    database = database_of(f"postgresql+psycopg://worker:{SECRET}%40x@db:6432/horsies?sslmode=require")
    args = database.connect_args
    assert {name: args[name] for name in ("host", "port", "user", "password", "dbname", "sslmode")} == {
        "host": "db",
        "port": "6432",
        "user": "worker",
        "password": f"{SECRET}@x",
        "dbname": "horsies",
        "sslmode": "require",
    }
    assert args["prepare_threshold"] is None
    assert SECRET not in repr(database)


@pytest.mark.parametrize(("name", "default"), [("connect_timeout", "10"), ("tcp_user_timeout", "30000")])
def test_a_timeout_in_the_url_wins_over_the_default(name: str, default: str) -> None:
    given = database_of(f"postgresql+psycopg://db/horsies?{name}=3")
    silent = database_of("postgresql+psycopg://db/horsies")
    assert [str(database.connect_args[name]) for database in (given, silent)] == ["3", default]


def test_a_late_end_of_one_attempt_leaves_the_next_one_watched(worker: Worker, tables: Tables) -> None:
    """As when a stop that came too late reports its end."""
    first = worker.begin("first")
    worker.end(first)
    worker.begin("second")
    worker.reporter.end(first)
    tables.cancelled.add("second")
    eventually(lambda: worker.stopped)
    assert worker.stopped == [("second", StopReason.CANCELLED)]


def test_an_attempt_that_has_ended_keeps_its_outcome() -> None:
    attempt = RunningAttempt(Assignment("t1", "w1", NOON, None), AttemptLog(10))
    assert attempt.end("COMPLETED")
    finished_at = attempt.finished_at
    assert not attempt.end("CANCELLED", "TASK_CANCELLED", "Its process was killed")
    assert (attempt.outcome, attempt.error_code, attempt.finished_at) == ("COMPLETED", None, finished_at)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"timeout_seconds": 10.0}, StopReason.TIMED_OUT),
        ({"stops_at_good_until": True}, StopReason.GOOD_UNTIL_PASSED),
    ],
)
def test_an_attempt_is_stopped_when_its_time_is_up_also_while_the_database_hangs(
    fields: dict[str, Any], reason: StopReason, worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = worker.begin(**fields)
    eventually(lambda: attempt.number is not None)
    tables.hanging.clear()
    attempt.log.add("INFO", ["line"])
    time.sleep(0.1)
    attempt.good_until = NOON
    attempt.started -= 3600
    eventually(lambda: worker.stopped, seconds=3.0)
    assert worker.stopped == [("t1", reason)]


def test_a_database_that_does_not_answer_is_hung_up_on(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "ANSWER_SECONDS", 0.2)
    worker.begin("first")
    eventually(lambda: ("first", 1) in tables.begun)
    tables.hanging.clear()
    tables.cancelled.add("first")
    eventually(lambda: worker.stopped, seconds=5.0)
    assert tables.hung_up >= 1


def test_the_server_gives_up_before_it_is_hung_up_on() -> None:
    limits = reporting.LIMITS
    assert limits.lock_seconds < limits.statement_seconds < reporter_module.ANSWER_SECONDS


def test_an_attempt_that_ends_while_it_is_reported_on_is_reported_to_its_end(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = worker.begin()
    append = tables._append_lines

    def append_and_end(params: Mapping[str, Any]) -> Rows:
        if attempt.outcome is None:
            attempt.log.add_note("INFO", "the last line")
            attempt.end("COMPLETED")
        return append(params)

    monkeypatch.setattr(tables, "_append_lines", append_and_end)
    attempt.log.add("INFO", ["the first line"])
    eventually(lambda: attempt.outcome is not None)
    worker.reporter.end(attempt)
    assert tables.texts("t1") == [(1, "the first line"), (2, "the last line")]
    assert tables.ended["t1", 1]["outcome"] == "COMPLETED"
