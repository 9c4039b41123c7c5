from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.borrowed.horsies import Assignment, find_assignment
from airflow_horsies.models import Progress
from airflow_horsies.worker.attempt import RunningAttempt, StopReason
from airflow_horsies.worker.logs import AttemptLog

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def attempt(timeout_seconds: float | None = None, **fields: Any) -> RunningAttempt:
    return RunningAttempt(Assignment("t1", "w1", NOON, timeout_seconds), AttemptLog(10), **fields)


def ago(running: RunningAttempt, seconds: float) -> RunningAttempt:
    """The same, had it begun that long ago."""
    running.started -= seconds
    return running


def _run_task_entry(task_id: Any, master_worker_id: str, timeout_ms: int | None, claimed_at: datetime | None) -> Any:
    """Named and set up as horsies' own."""

    def task() -> Assignment | None:
        return find_assignment()

    return task()


def test_assignment_is_read_from_the_frame_of_horsies() -> None:
    found = _run_task_entry("t1", "w1", 1500, NOON)
    assert found == Assignment(task_id="t1", worker_id="w1", claimed_at=NOON, timeout_seconds=1.5)


def test_assignment_may_lack_a_timeout_and_the_time_of_its_claim() -> None:
    assert _run_task_entry("t1", "w1", None, None) == Assignment("t1", "w1", None, None)


def test_ids_of_an_assignment_are_text() -> None:
    found = _run_task_entry(7, "w1", None, None)
    assert found.task_id == "7"


def test_a_function_called_by_hand_has_no_assignment() -> None:
    assert find_assignment() is None


def test_horsies_still_names_what_an_assignment_is_read_from() -> None:
    from horsies.core.worker.child_runner import _run_task_entry as real

    assert real.__code__.co_name == "_run_task_entry"
    names = real.__code__.co_varnames[: real.__code__.co_argcount]
    assert {"task_id", "master_worker_id", "timeout_ms", "claimed_at"} <= set(names)


@pytest.mark.parametrize(
    ("timeout_seconds", "ran_seconds", "reason"),
    [
        (None, 1e6, None),
        (60.0, 53.0, None),
        (60.0, 54.5, StopReason.TIMED_OUT),
        (3600.0, 3589.0, None),
        (3600.0, 3590.5, StopReason.TIMED_OUT),
        (10.0, 7.0, None),
        (10.0, 8.5, StopReason.TIMED_OUT),
        # Too short for a gentle end: horsies' own comes at its time.
        (9.9, 60.0, None),
    ],
)
def test_an_attempt_is_stopped_shortly_before_horsies_would_kill_it(
    timeout_seconds: float | None, ran_seconds: float, reason: StopReason | None
) -> None:
    assert ago(attempt(timeout_seconds), ran_seconds).find_passed_limit() is reason


def test_an_attempt_is_stopped_by_good_until_only_where_the_task_asked_for_it() -> None:
    past, future = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(hours=1)
    assert attempt(good_until=past).find_passed_limit() is None
    assert attempt(good_until=future, stops_at_good_until=True).find_passed_limit() is None
    assert attempt(good_until=None, stops_at_good_until=True).find_passed_limit() is None
    stopped = attempt(good_until=past, stops_at_good_until=True)
    assert stopped.find_passed_limit() is StopReason.GOOD_UNTIL_PASSED


def test_progress_is_of_the_attempt() -> None:
    running = attempt()
    assert running.current_progress() is None
    running.progress = (1, 4, "reading")
    running.number = 2
    assert running.current_progress() == Progress(attempt=2, done=1, total=4, stage="reading")


def test_the_end_is_seen_after_everything_about_it() -> None:
    running = attempt()
    running.log.add("INFO", ["line"] * 11)
    assert running.outcome is None
    running.end("FAILED", "SPARK_JOB_FAILED", "boo")
    assert (running.outcome, running.error_code, running.error_message) == ("FAILED", "SPARK_JOB_FAILED", "boo")
    assert running.finished_at is not None
    assert "not stored" in running.log.take(1)[-1].lines[-1]
    assert not running.reported.is_set()


def test_attempts_are_told_apart_by_identity() -> None:
    assert attempt() != attempt()
