"""The attempts at a task: what horsies recorded, merged with what workers recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_horsies.core.signals import AWAITING_SIGNAL
from airflow_horsies.core.task import Attempt, AttemptRecord, TaskState, TaskView

# The attempt started and its end was not recorded: its process was killed.
LOST = "LOST"
# The attempt ended to wait for a signal without a worker. horsies records it as failed.
PARKED = "PARKED"


class Source(StrEnum):
    """Who recorded an attempt."""

    HORSIES = "HORSIES"
    WORKER = "WORKER"
    # Not recorded yet: only the row of the task shows that it runs.
    TASK = "TASK"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAttempt:
    """An attempt as users see it. It has no end while it runs, or if none was recorded."""

    source: Source
    number: int
    outcome: str
    started_at: datetime
    finished_at: datetime | None
    will_retry: bool = False
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_seconds(self) -> float | None:
        return None if self.finished_at is None else (self.finished_at - self.started_at).total_seconds()

    @property
    def message(self) -> str | None:
        return self.error_message or self.failed_reason


def attempts_of(task: TaskView | None, records: Collection[AttemptRecord]) -> list[ShownAttempt]:
    """
    Every attempt once, first to last.

    :param task: None if horsies no longer keeps the task; the workers' records remain.
    """
    if task is None:
        last = max((record.number for record in records), default=0)
        return [_from_record(record, _last_outcome(record, last), record.finished_at) for record in records]
    metrics = {record.number: record.metrics for record in records}
    found = [_from_attempt(attempt, metrics.get(attempt.number, {})) for attempt in task.attempts]
    recorded = {attempt.number for attempt in task.attempts}
    found += [
        _from_record(record, _outcome(record, task), _end(record, task))
        for record in records
        if record.number not in recorded
    ]
    found.sort(key=lambda attempt: attempt.number)
    if task.state is TaskState.RUNNING and task.started_at and all(attempt.finished_at for attempt in found):
        found.append(_from_task(task, task.started_at))
    return found


def recorded_attempts(task: TaskView, records: Collection[AttemptRecord]) -> list[ShownAttempt]:
    """The attempts that horsies or a worker recorded."""
    return [attempt for attempt in attempts_of(task, records) if attempt.source is not Source.TASK]


def is_parked(attempt: Attempt) -> bool:
    """Whether the attempt ended to wait for a signal, which is no failure."""
    return attempt.error_code == AWAITING_SIGNAL and attempt.will_retry


def _from_attempt(attempt: Attempt, metrics: Mapping[str, Any]) -> ShownAttempt:
    return ShownAttempt(
        source=Source.HORSIES,
        number=attempt.number,
        outcome=PARKED if is_parked(attempt) else attempt.outcome,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        will_retry=attempt.will_retry,
        error_code=attempt.error_code,
        error_message=attempt.error_message,
        failed_reason=attempt.failed_reason,
        worker_id=attempt.worker_id,
        hostname=attempt.hostname,
        pid=attempt.pid,
        metrics=metrics,
    )


def _from_record(record: AttemptRecord, outcome: str, finished_at: datetime | None) -> ShownAttempt:
    return ShownAttempt(
        source=Source.WORKER,
        number=record.number,
        outcome=outcome,
        started_at=record.started_at,
        finished_at=finished_at,
        error_code=record.error_code,
        error_message=record.error_message,
        worker_id=record.worker_id,
        hostname=record.hostname,
        pid=record.pid,
        metrics=record.metrics,
    )


def _from_task(task: TaskView, started_at: datetime) -> ShownAttempt:
    return ShownAttempt(
        source=Source.TASK,
        number=task.retry_count + 1,
        outcome=str(TaskState.RUNNING),
        started_at=started_at,
        finished_at=None,
        worker_id=task.worker_id,
        hostname=task.hostname,
        pid=task.pid,
    )


def _last_outcome(record: AttemptRecord, last: int) -> str:
    """The outcome of an attempt at a task that horsies no longer keeps."""
    if record.error_code == AWAITING_SIGNAL and record.number < last:
        return PARKED
    return record.outcome or LOST


def _outcome(record: AttemptRecord, task: TaskView) -> str:
    if record.outcome is not None:
        # Without a record of horsies yet, which follows within milliseconds.
        is_over = task.state.is_terminal and record.number > task.retry_count
        return PARKED if record.error_code == AWAITING_SIGNAL and not is_over else record.outcome
    is_last = all(attempt.number < record.number for attempt in task.attempts)
    return str(task.state) if is_last and task.state in (TaskState.CANCELLED, TaskState.RUNNING) else LOST


def _end(record: AttemptRecord, task: TaskView) -> datetime | None:
    """A cancel ends the task before its worker stops and records the end."""
    if record.finished_at is None and _outcome(record, task) == TaskState.CANCELLED:
        return task.finished_at
    return record.finished_at
