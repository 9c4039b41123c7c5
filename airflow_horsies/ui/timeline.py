"""The story of a submitted task as pieces of time: it waits, is claimed, runs, backs off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any

from airflow_horsies.core.submission import Submission
from airflow_horsies.core.task import AttemptRecord, TaskState, TaskView
from airflow_horsies.core.wording import LOST, ended_at, outcome_of, unrecorded
from airflow_horsies.ui.airflow_side import MAX_TRIES, AirflowTry

WAITING = "waiting"
CLAIMED = "claimed"
RUNNING = "running"
BACKING_OFF = "backing off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAttempt:
    """An attempt by whoever told of it: horsies, the worker, or only the row of the task that runs."""

    number: int
    outcome: str
    started_at: datetime
    finished_at: datetime | None
    will_retry: bool = False
    error_code: str | None = None
    error_message: str | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of time; without an end it lasts."""

    kind: str
    start: datetime
    end: datetime | None
    attempt: int | None = None
    outcome: str | None = None


def merge_attempts(task: TaskView | None, records: Collection[AttemptRecord]) -> list[ShownAttempt]:
    """Every attempt once, first to last; of a task that horsies no longer keeps, what its workers told."""
    if task is None:
        return [_of_record(record, record.outcome or LOST, record.finished_at) for record in records]
    metrics = {record.number: dict(record.metrics) for record in records}
    merged = [
        ShownAttempt(
            number=attempt.number,
            outcome=attempt.outcome,
            started_at=attempt.started_at,
            finished_at=attempt.finished_at,
            will_retry=attempt.will_retry,
            error_code=attempt.error_code,
            error_message=attempt.error_message or attempt.failed_reason,
            worker_id=attempt.worker_id,
            hostname=attempt.hostname,
            pid=attempt.pid,
            metrics=metrics.get(attempt.number, {}),
        )
        for attempt in task.attempts
    ]
    merged += [
        _of_record(record, outcome_of(record, task), ended_at(record, task)) for record in unrecorded(task, records)
    ]
    merged.sort(key=lambda attempt: attempt.number)
    if _runs_untold(task, merged) and task.started_at is not None:
        merged.append(
            ShownAttempt(
                number=task.retry_count + 1,
                outcome=str(TaskState.RUNNING),
                started_at=task.started_at,
                finished_at=None,
                worker_id=task.worker_id,
                hostname=task.hostname,
                pid=task.pid,
            )
        )
    return merged


def lost_tries(tries: Sequence[AirflowTry], submissions: Collection[Submission]) -> list[AirflowTry]:
    """Tries that submitted and of which Airflow keeps no record, as it lost them: each is over when the next begins."""
    known = sorted(tries, key=lambda each: each.number)
    sent_at: dict[int, datetime] = {}
    for each in submissions:
        sent_at[each.try_number] = min(each.submitted_at, sent_at.get(each.try_number, each.submitted_at))
    # Airflow may know of more than were asked for.
    first = known[0].number if len(known) >= MAX_TRIES else 0
    lost: list[AirflowTry] = []
    for number in sorted(number for number in sent_at.keys() - {each.number for each in known} if number > first):
        following = [each.started_at for each in known if each.number > number and each.started_at]
        # A run that was deleted and made again counts its tries anew.
        if following and following[0] > sent_at[number]:
            lost.append(AirflowTry(number=number, state="lost", started_at=sent_at[number], ended_at=following[0]))
    return lost


def segments(submission: Submission, task: TaskView | None, attempts: Sequence[ShownAttempt]) -> list[Segment]:
    """What the task did when, without gaps, from its submission on."""
    if task is None:
        return []
    pieces: list[Segment] = []
    kind, since = WAITING, submission.submitted_at
    for attempt, following in zip_longest(attempts, attempts[1:]):
        pieces += _pause(kind, since, attempt.started_at, task.claimed_at)
        # Of an attempt whose process was killed nobody knows the end: it was over when the next thing happened.
        over = attempt.finished_at or (following.started_at if following else task.finished_at)
        pieces.append(
            Segment(kind=RUNNING, start=attempt.started_at, end=over, attempt=attempt.number, outcome=attempt.outcome)
        )
        if over is None:
            return pieces
        kind, since = BACKING_OFF, over
    if task.state.is_terminal:
        if not attempts:
            pieces += _pause(kind, since, task.finished_at or since, None)
        return pieces
    return pieces + _pause(kind, since, None, task.claimed_at)


def _of_record(record: AttemptRecord, outcome: str, finished_at: datetime | None) -> ShownAttempt:
    return ShownAttempt(
        number=record.number,
        outcome=outcome,
        started_at=record.started_at,
        finished_at=finished_at,
        error_code=record.error_code,
        error_message=record.error_message,
        worker_id=record.worker_id,
        hostname=record.hostname,
        pid=record.pid,
        metrics=dict(record.metrics),
    )


def _pause(kind: str, since: datetime, until: datetime | None, claimed_at: datetime | None) -> list[Segment]:
    if until is not None and until <= since:
        return []
    if claimed_at is None or claimed_at < since or (until is not None and claimed_at > until):
        return [Segment(kind=kind, start=since, end=until)]
    return [Segment(kind=kind, start=since, end=claimed_at), Segment(kind=CLAIMED, start=claimed_at, end=until)]


def _runs_untold(task: TaskView, attempts: Sequence[ShownAttempt]) -> bool:
    return task.state is TaskState.RUNNING and all(attempt.finished_at is not None for attempt in attempts)
