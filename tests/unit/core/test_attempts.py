from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.attempts import LOST, PARKED, Source, attempts_of, recorded_attempts
from airflow_horsies.models import Attempt, AttemptRecord, TaskState, TaskView

START = datetime(2026, 1, 2, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


ATTEMPT = Attempt(
    number=2,
    outcome="COMPLETED",
    will_retry=False,
    started_at=at(1),
    finished_at=at(2.5),
    failed_reason="killed",
    hostname="h",
)
RECORD = AttemptRecord(number=1, worker_id="w", hostname="h", pid=1, started_at=START)


def task(state: TaskState, *attempts: Attempt, **changed: Any) -> TaskView:
    given = {"sent_at": START, "enqueued_at": START, "retry_count": 0, "max_retries": 3, **changed}
    return TaskView(id="id", task_name="n", queue="q", priority=1, state=state, attempts=attempts, **given)


def test_every_attempt_comes_once_and_in_order() -> None:
    records = [replace(RECORD, number=3), replace(RECORD, number=2), RECORD]
    found = attempts_of(task(TaskState.RUNNING, ATTEMPT, started_at=at(3)), records)
    assert [(each.number, each.source, each.outcome) for each in found] == [
        (1, Source.WORKER, LOST),
        (2, Source.HORSIES, "COMPLETED"),
        (3, Source.WORKER, "RUNNING"),
    ]


def test_metrics_of_the_worker_join_the_attempt_horsies_recorded() -> None:
    record = replace(RECORD, number=2, outcome="FAILED", metrics={"jobs": 3})
    (found,) = attempts_of(task(TaskState.COMPLETED, ATTEMPT), [record])
    assert (found.outcome, found.metrics, found.duration_seconds) == ("COMPLETED", {"jobs": 3}, 1.5)
    assert (found.error_message, found.message) == (None, "killed")


def test_of_a_task_past_its_retention_the_records_of_workers_remain() -> None:
    ended, lost = attempts_of(
        None, [replace(RECORD, outcome="COMPLETED", finished_at=at(2)), replace(RECORD, number=2)]
    )
    assert (ended.outcome, ended.finished_at) == ("COMPLETED", at(2))
    assert (lost.outcome, lost.duration_seconds) == (LOST, None)


@pytest.mark.parametrize(
    ("state", "number", "outcome"),
    [
        (TaskState.RUNNING, 3, "RUNNING"),
        (TaskState.RUNNING, 1, LOST),
        (TaskState.CANCELLED, 3, "CANCELLED"),
        (TaskState.CANCELLED, 1, LOST),
        (TaskState.PENDING, 3, LOST),
        (TaskState.FAILED, 3, LOST),
    ],
    ids=str,
)
def test_outcome_that_was_never_recorded_follows_from_the_task(state: TaskState, number: int, outcome: str) -> None:
    found = attempts_of(task(state, ATTEMPT), [replace(RECORD, number=number)])
    assert {each.number: each.outcome for each in found}[number] == outcome


def test_a_cancel_ends_an_attempt_before_its_worker_has_stopped() -> None:
    (found,) = attempts_of(task(TaskState.CANCELLED, finished_at=at(5)), [RECORD])
    assert (found.outcome, found.finished_at) == ("CANCELLED", at(5))


def test_a_task_that_runs_has_an_attempt_before_anybody_recorded_it() -> None:
    running = task(TaskState.RUNNING, replace(ATTEMPT, number=1), started_at=at(3), retry_count=1, hostname="other")
    assert [(each.number, each.source, each.hostname) for each in attempts_of(running, ())] == [
        (1, Source.HORSIES, "h"),
        (2, Source.TASK, "other"),
    ]
    assert [each.number for each in recorded_attempts(running, ())] == [1]
    assert [each.source for each in attempts_of(running, [replace(RECORD, number=2)])] == [
        Source.HORSIES,
        Source.WORKER,
    ]


def test_an_attempt_that_waits_for_a_signal_is_parked_and_not_failed() -> None:
    awaiting = replace(ATTEMPT, number=1, outcome="FAILED", will_retry=True, error_code="AWAITING_SIGNAL")
    record = replace(RECORD, outcome="FAILED", error_code="AWAITING_SIGNAL", finished_at=at(2))
    for view, records in (
        (task(TaskState.PENDING, awaiting, retry_count=1), []),
        (task(TaskState.RUNNING, retry_count=0), [record]),
        (None, [record, replace(RECORD, number=2, outcome="COMPLETED")]),
    ):
        assert attempts_of(view, records)[0].outcome == PARKED
    refused = task(TaskState.FAILED, replace(awaiting, will_retry=False))
    assert attempts_of(refused, [])[0].outcome == "FAILED", "horsies refused to retry it"
    assert attempts_of(task(TaskState.FAILED), [record])[0].outcome == "FAILED"
