"""A task as stored in the database: its state, its attempts and its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_horsies.exceptions import InvalidTask


class TaskState(StrEnum):
    """The states of a horsies task."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})
LIVE_STATES = frozenset(TaskState) - TERMINAL_STATES


def require_states(states: Collection[str]) -> frozenset[TaskState]:
    """The states of a caller, who may also give their names."""
    if isinstance(states, str):
        raise InvalidTask("states", f"must be a list of states, not the string {states!r}")
    for state in states:
        if state not in set(TaskState):
            raise InvalidTask("states", f"must only contain {', '.join(TaskState)}, not {state!r}")
    return frozenset(TaskState(state) for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One finished attempt at a task; horsies never changes it afterwards."""

    number: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    process_name: str | None = None

    @property
    def duration_seconds(self) -> float:
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """What a worker of ``airflow_horsies.worker`` reported of an attempt, also of a running or cancelled one.

    ``finished_at`` and ``outcome`` are None while it runs, and stay None if its process is killed.
    """

    number: int
    worker_id: str
    hostname: str
    pid: int
    started_at: datetime
    finished_at: datetime | None = None
    outcome: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_seconds(self) -> float | None:
        return None if self.finished_at is None else (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultReference:
    """Where a task wrote a result that was too large to return.

    .. code-block:: python

        reference = ResultReference(**ti.xcom_pull(task_ids="daily"))
        spark.read.format(reference.format).load(reference.uri)
    """

    uri: str
    format: str
    rows: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskException:
    """The Python exception behind a failure, as the worker stored it."""

    type: str
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """The error a task ended with."""

    error_code: str | None
    message: str | None
    data: Any = None
    exception: TaskException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returned: a value, or an error. A value of None is a value."""

    ok: Any = None
    error: TaskFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as currently stored in the database."""

    id: str
    task_name: str
    queue: str
    priority: int
    state: TaskState
    sent_at: datetime | None
    enqueued_at: datetime
    retry_count: int
    max_retries: int
    good_until: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_retry_at: datetime | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    error_code: str | None = None
    failed_reason: str | None = None
    is_workflow_task: bool = False
    kwargs: Mapping[str, Any] | None = None
    result: TaskResult | None = None
    attempts: tuple[Attempt, ...] = ()


class CancelOutcome(StrEnum):
    """The outcome of a cancel."""

    CANCELLED = "CANCELLED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    ALREADY_FINISHED = "ALREADY_FINISHED"
    # Another task instance shares the task by an idempotency key, or a later try waits for it.
    STILL_WANTED = "STILL_WANTED"
    # The cancel cannot be recorded now, and is carried out later.
    REQUESTED = "REQUESTED"
