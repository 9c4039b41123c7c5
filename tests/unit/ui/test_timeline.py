from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.core.attempts import attempts_of
from airflow_horsies.models import Attempt, AttemptRecord, Submission, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.ui.airflow_side import MAX_TRIES, AirflowTry
from airflow_horsies.ui.payloads import Segment
from airflow_horsies.ui.timeline import lost_tries, segments

START = datetime(2026, 1, 2, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


SUBMISSION = Submission(
    horsies_task_id="id",
    namespace="default",
    task_instance=TaskInstanceKey(dag_id="d", run_id="r", task_id="t"),
    position=0,
    life=1,
    round=1,
    try_number=1,
    task_name="n",
    queue="q",
    good_until=None,
    submitted_at=START,
)


def task(state: TaskState, **changed: Any) -> TaskView:
    given = {"sent_at": START, "enqueued_at": START, "retry_count": 0, "max_retries": 3, **changed}
    return TaskView(id="id", task_name="n", queue="q", priority=1, state=state, **given)


def attempt(number: int, started: float, finished: float, outcome: str = "FAILED") -> Attempt:
    return Attempt(
        number=number, outcome=outcome, will_retry=False, started_at=at(started), finished_at=at(finished), hostname="h"
    )


def parked(number: int, started: float, finished: float) -> Attempt:
    return replace(attempt(number, started, finished), will_retry=True, error_code="AWAITING_SIGNAL")


def record(number: int, started: float, finished: float | None = None, **changed: Any) -> AttemptRecord:
    ended = None if finished is None else at(finished)
    return AttemptRecord(
        number=number, worker_id="w", hostname="h", pid=1, started_at=at(started), finished_at=ended, **changed
    )


def told(view: TaskView | None, *records: AttemptRecord) -> list[tuple[str, float, float | None]]:
    found = segments(SUBMISSION, view, attempts_of(view, records))
    return [(_name(each), _seconds(each.start), each.end and _seconds(each.end)) for each in found]


def _name(segment: Segment) -> str:
    return f"{segment.kind} {segment.attempt} {segment.outcome}" if segment.attempt else segment.kind


def _seconds(instant: datetime) -> float:
    return (instant - START).total_seconds()


@pytest.mark.parametrize(
    ("view", "records", "expected"),
    [
        (task(TaskState.PENDING), (), [("waiting", 0, None)]),
        (task(TaskState.CLAIMED, claimed_at=at(2)), (), [("waiting", 0, 2), ("claimed", 2, None)]),
        (
            task(TaskState.RUNNING, claimed_at=at(2), started_at=at(3)),
            (),
            [("waiting", 0, 2), ("claimed", 2, 3), ("running 1 RUNNING", 3, None)],
        ),
        (
            task(TaskState.RUNNING, claimed_at=at(2), started_at=at(3)),
            (record(1, 3),),
            [("waiting", 0, 2), ("claimed", 2, 3), ("running 1 RUNNING", 3, None)],
        ),
        (
            task(TaskState.PENDING, attempts=(attempt(1, 1, 4),), next_retry_at=at(9)),
            (),
            [("waiting", 0, 1), ("running 1 FAILED", 1, 4), ("backing off", 4, None)],
        ),
        (
            task(TaskState.PENDING, attempts=(parked(1, 1, 4),), next_retry_at=at(9)),
            (),
            [("waiting", 0, 1), ("running 1 PARKED", 1, 4), ("parked", 4, None)],
        ),
        (
            task(
                TaskState.COMPLETED,
                claimed_at=at(8),
                finished_at=at(10),
                attempts=(attempt(1, 1, 4), attempt(2, 9, 10, "COMPLETED")),
            ),
            (),
            [
                ("waiting", 0, 1),
                ("running 1 FAILED", 1, 4),
                ("backing off", 4, 8),
                ("claimed", 8, 9),
                ("running 2 COMPLETED", 9, 10),
            ],
        ),
        (task(TaskState.EXPIRED, finished_at=at(7)), (), [("waiting", 0, 7)]),
        (
            task(TaskState.CANCELLED, started_at=at(1), finished_at=at(5)),
            (record(1, 1),),
            [("waiting", 0, 1), ("running 1 CANCELLED", 1, 5)],
        ),
        # Killed, and nobody wrote its end.
        (
            task(TaskState.COMPLETED, finished_at=at(9), attempts=(attempt(2, 6, 9, "COMPLETED"),)),
            (record(1, 1), record(2, 6, 9)),
            [("waiting", 0, 1), ("running 1 LOST", 1, 6), ("running 2 COMPLETED", 6, 9)],
        ),
        (None, (record(1, 1, 2, outcome="COMPLETED"),), []),
    ],
)
def test_the_story_of_a_task_has_no_gaps(
    view: TaskView | None, records: tuple[AttemptRecord, ...], expected: list[Any]
) -> None:
    assert told(view, *records) == expected


def airflow_try(number: int, started: float | None) -> AirflowTry:
    return AirflowTry(
        number=number, state="success", started_at=None if started is None else at(started), ended_at=None
    )


def sent_by(*tries: tuple[int, float]) -> list[Submission]:
    return [replace(SUBMISSION, try_number=number, submitted_at=at(seconds)) for number, seconds in tries]


@pytest.mark.parametrize(
    ("tries", "submissions", "lost"),
    [
        ([airflow_try(2, 50)], sent_by((1, 3), (2, 51)), [(1, 3, 50)]),
        ([airflow_try(2, 50)], sent_by((1, 3)), [(1, 3, 50)]),
        ([airflow_try(4, 90)], sent_by((3, 60), (1, 3), (1, 2)), [(1, 2, 90), (3, 60, 90)]),
        ([airflow_try(1, 0), airflow_try(2, 50)], sent_by((1, 3), (2, 51)), []),
        # The next try has not begun, or the run was deleted and made again, or Airflow has no task instance any more.
        ([airflow_try(1, 0)], sent_by((1, 3), (2, 51)), []),
        ([airflow_try(2, None)], sent_by((1, 3)), []),
        ([airflow_try(2, 0)], sent_by((1, 3)), []),
        ([], sent_by((1, 3)), []),
        ([airflow_try(n + 2, 100 + n) for n in range(MAX_TRIES)], sent_by((1, 3)), []),
    ],
)
def test_tries_that_airflow_lost_are_known_from_what_they_submitted(
    tries: list[AirflowTry], submissions: list[Submission], lost: list[tuple[int, float, float]]
) -> None:
    found = lost_tries(tries, submissions)
    assert {each.state for each in found} <= {"lost"}
    assert [
        (each.number, _seconds(each.started_at), _seconds(each.ended_at))
        for each in found
        if each.started_at and each.ended_at
    ] == lost
