"""Reports of short tasks: one transaction, and none of its own for a success without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.db.statement import Rows
from airflow_horsies.exceptions import DatabaseError, DatabaseUnreachable
from airflow_horsies.worker import attempt as attempt_module
from airflow_horsies.worker import reporter as reporter_module
from airflow_horsies.worker.attempt import StopReason
from tests.unit.worker.tables import Tables, eventually
from tests.unit.worker.test_reporter import Worker

REPORT_SECONDS = 0.1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tables: Tables) -> Iterator[Worker]:
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", REPORT_SECONDS)
    monkeypatch.setattr(reporter_module, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(reporter_module, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(attempt_module, "SHOWN_AFTER_SECONDS", 3600.0)
    worker = Worker(tables)
    # The first question of a child makes the tables and looks at their schema.
    worker.end(worker.begin("the first"), "FAILED")
    tables.begun.clear(), tables.ended.clear()
    tables.runs = 0
    yield worker
    tables.down = None
    tables.hanging.set()
    for attempt in worker.attempts:
        if attempt.outcome is None:
            worker.end(attempt)
    worker.reporter.flush()
    assert not worker.reporter._is_behind


def test_nothing_is_written_of_a_running_task_before_there_is_something_to_tell(worker: Worker, tables: Tables) -> None:
    worker.begin()
    time.sleep(4 * REPORT_SECONDS)
    assert tables.runs == 0


def test_silent_successes_are_written_together_and_nobody_waits_for_them(worker: Worker, tables: Tables) -> None:
    tables.hanging.clear()
    tables.retries["t3"] = 2
    attempts = [worker.begin(f"t{number}") for number in range(20)]
    assert max(worker.end(attempt) for attempt in attempts) < 1
    tables.hanging.set()
    eventually(lambda: len(tables.ended) == 20)
    assert tables.runs <= 2
    assert sorted(number for _, number in tables.ended) == [*[1] * 19, 3]
    for attempt, key in zip(attempts, sorted(tables.ended, key=lambda key: int(key[0][1:])), strict=True):
        assert tables.begun[key]["started_at"] == attempt.started_at
        assert tables.ended[key]["finished_at"] == attempt.finished_at


def test_a_silent_success_after_a_pause_is_written_without_a_further_task(worker: Worker, tables: Tables) -> None:
    for number in range(5):
        worker.end(worker.begin(f"t{number}"))
        eventually(lambda number=number: (f"t{number}", 1) in tables.ended)  # type: ignore[misc]


def test_many_silent_successes_do_not_wait_for_the_next_report(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 3600.0)
    for number in range(2 * reporter_module.WRITTEN_AT_ONCE):
        worker.end(worker.begin(f"t{number}"))
    eventually(lambda: len(tables.ended) >= reporter_module.WRITTEN_AT_ONCE)


@pytest.mark.parametrize("outcome", ["FAILED", "CANCELLED"])
def test_an_end_without_lines_that_is_no_success_is_written_when_it_returns(
    worker: Worker, tables: Tables, outcome: str
) -> None:
    worker.end(worker.begin(), outcome, "CODE", "message")
    assert tables.ended["t1", 1]["outcome"] == outcome
    assert tables.runs == 1


def test_a_short_task_with_lines_is_written_in_one_transaction_when_it_ends(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.log.add("INFO", ["first", "second"])
    worker.end(attempt)
    assert (tables.texts("t1"), tables.runs) == ([(1, "first"), (2, "second")], 1)
    assert tables.ended["t1", 1]["outcome"] == "COMPLETED"


def test_metrics_are_written_when_the_end_returns(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.metrics = {"jobs": 1}
    worker.end(attempt)
    assert tables.ended["t1", 1]["metrics"] == '{"jobs": 1}'


def test_progress_is_gone_when_the_end_returns(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.reports_own_progress = True
    attempt.progress = (1, 2, None)
    worker.end(attempt)
    assert (tables.ended["t1", 1]["outcome"], tables.progress) == ("COMPLETED", [])


def test_a_task_that_runs_on_is_shown_as_running(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "SHOWN_AFTER_SECONDS", 0.2)
    attempt = worker.begin()
    eventually(lambda: ("t1", 1) in tables.begun)
    assert time.monotonic() - attempt.started >= 0.2
    assert worker.end(attempt) < 1
    eventually(lambda: ("t1", 1) in tables.ended)


def test_the_deadline_of_a_task_that_stops_at_it_is_read_at_once(worker: Worker, tables: Tables) -> None:
    worker.begin(stops_at_good_until=True)
    eventually(lambda: ("t1", 1) in tables.begun)


def test_a_task_that_was_cancelled_before_it_had_anything_to_tell_is_stopped_and_its_lines_are_kept(
    worker: Worker, tables: Tables
) -> None:
    tables.statuses["t1"] = "CANCELLED"
    attempt = worker.begin()
    attempt.log.add("INFO", ["line"])
    eventually(lambda: worker.stopped)
    attempt.log.add("INFO", ["cleaned up"])
    worker.end(attempt, "CANCELLED")
    assert worker.stopped == [("t1", StopReason.CANCELLED)]
    assert tables.texts("t1") == [(1, "line"), (2, "cleaned up")]


def test_a_silent_success_of_a_task_that_was_taken_away_leaves_nothing(worker: Worker, tables: Tables) -> None:
    tables.lost.add("t1")
    worker.end(worker.begin("t1"))
    worker.end(worker.begin("t2"))
    eventually(lambda: ("t2", 1) in tables.ended)
    assert list(tables.ended) == [("t2", 1)]


def test_silent_successes_outlive_an_outage(worker: Worker, tables: Tables) -> None:
    tables.down = DatabaseUnreachable("away")
    for number in range(300):
        worker.end(worker.begin(f"t{number}"))
    eventually(lambda: tables.runs >= 2)
    tables.down = None
    eventually(lambda: len(tables.ended) == 300)


def test_silent_successes_that_are_refused_do_not_block_others(
    worker: Worker, tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = tables._record_attempts

    def refuse(params: Mapping[str, Any]) -> Rows:
        if "bad" in params["ids"]:
            raise DatabaseError("permission denied")
        return record(params)

    monkeypatch.setattr(tables, "_record_attempts", refuse)
    worker.end(worker.begin("bad"))
    eventually(lambda: "Discarded the unwritten logs and progress of task bad" in caplog.text)
    worker.end(worker.begin("good"))
    eventually(lambda: list(tables.ended) == [("good", 1)])


def test_what_is_left_is_written_before_the_process_ends(worker: Worker, tables: Tables) -> None:
    for number in range(50):
        worker.end(worker.begin(f"t{number}"))
    worker.reporter.flush()
    assert len(tables.ended) == 50


def test_a_process_that_ends_waits_a_limited_time_for_a_database_that_hangs(
    worker: Worker, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.hanging.clear()
    worker.end(worker.begin())
    began = time.monotonic()
    worker.reporter.flush(0.2)
    assert 0.2 <= time.monotonic() - began < 2
    assert "The reports of 1 attempts were not written" in caplog.text


def test_an_end_that_is_told_by_two_threads_is_written_once(worker: Worker, tables: Tables) -> None:
    attempt = worker.begin()
    attempt.end("FAILED")
    tellers = [threading.Thread(target=worker.reporter.end, args=(attempt,)) for _ in range(2)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    assert (list(tables.ended), tables.runs) == ([("t1", 1)], 1)


def test_lines_are_not_doubled_where_the_answer_to_the_first_report_was_lost(worker: Worker, tables: Tables) -> None:
    tables.lines["t1", 1] = {1: "of an earlier run"}
    tables.breaking = [DatabaseUnreachable("gone")]
    attempt = worker.begin()
    attempt.log.add("INFO", ["first"])
    eventually(lambda: tables.texts("t1")[1:] and not tables.breaking)
    attempt.log.add("INFO", ["second"])
    worker.end(attempt)
    eventually(attempt.reported.is_set)
    assert tables.texts("t1") == [(1, "of an earlier run"), (2, "first"), (3, "second")]
