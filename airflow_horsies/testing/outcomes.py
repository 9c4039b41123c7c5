"""The outcome of a declared task, attempt by attempt."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.core.spec import RetryPolicy
from airflow_horsies.core.task import (
    Attempt,
    AttemptRecord,
    TaskException,
    TaskFailure,
    TaskResult,
    TaskState,
    TaskView,
)

WORKER_ID = "fake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    :param value: the value that an attempt returns, or a function of the task's arguments.
    :param failure: the failure of an attempt that fails.
    :param failures: how many attempts of the same work fail before one returns; None is all of them.
    :param state: the state in which the task stays or ends without an attempt.
    :param node: of a workflow, the path of the node that fails.
    :param never_starts: of a workflow, that its first node fails.
    :param is_paused: of a workflow, that it is paused until somebody resumes it.
    """

    value: Any = None
    failure: TaskFailure | None = None
    failures: int | None = 0
    state: TaskState | None = None
    node: str | None = None
    never_starts: bool = False
    is_paused: bool = False


def resumed(declared: Outcome) -> Outcome:
    """What becomes of a paused workflow once somebody resumes it."""
    return replace(declared, state=None, failure=None, is_paused=False)


def play(task: TaskView, policy: RetryPolicy | None, outcome: Outcome, *, failed_before: int) -> TaskView:
    """The task after its outcome.

    :param failed_before: how many attempts of the same work have failed in earlier tasks.
    """
    now = datetime.now(UTC)
    match outcome.state:
        case TaskState.EXPIRED:
            return replace(task, state=TaskState.EXPIRED, finished_at=now, error_code="TASK_EXPIRED")
        case TaskState.CANCELLED:
            return replace(task, state=TaskState.CANCELLED, finished_at=now)
        case TaskState.RUNNING:
            return replace(task, state=TaskState.RUNNING, **_place(), started_at=task.started_at or now)
    results = list(_results(task.kwargs or {}, policy, outcome, failed_before))
    result = results[-1]
    error = result.error
    return replace(
        task,
        state=TaskState.COMPLETED if error is None else TaskState.FAILED,
        **_place(),
        retry_count=len(results) - 1,
        started_at=now,
        finished_at=now,
        error_code=None if error is None else error.error_code,
        result=result,
        attempts=tuple(
            _attempt(number, item, now, will_retry=item is not result) for number, item in enumerate(results, 1)
        ),
    )


def records_of(task: TaskView) -> tuple[AttemptRecord, ...]:
    """The records that a worker of airflow_horsies.worker writes of the attempts of a task."""
    ended = [
        AttemptRecord(
            number=attempt.number,
            worker_id=WORKER_ID,
            hostname=str(attempt.hostname),
            pid=attempt.pid or 0,
            started_at=attempt.started_at,
            finished_at=attempt.finished_at,
            outcome=attempt.outcome,
            error_code=attempt.error_code,
            error_message=attempt.error_message,
        )
        for attempt in task.attempts
    ]
    if ended or task.started_at is None:
        return tuple(ended)
    outcome = None if task.state is TaskState.RUNNING else task.state.value
    began = AttemptRecord(number=1, worker_id=WORKER_ID, **_host(), started_at=task.started_at)
    return (replace(began, finished_at=task.finished_at, outcome=outcome),)


def _results(
    kwargs: Mapping[str, Any], policy: RetryPolicy | None, outcome: Outcome, failed_before: int
) -> Iterator[TaskResult]:
    """One for each attempt."""
    retries = 0
    while True:
        result = _result(kwargs, outcome, failed_before + retries)
        yield result
        if not _is_retried(policy, result, retries):
            return
        retries += 1


def _result(kwargs: Mapping[str, Any], outcome: Outcome, failed_before: int) -> TaskResult:
    if outcome.failure is not None and (outcome.failures is None or failed_before < outcome.failures):
        return TaskResult(error=outcome.failure)
    if not callable(outcome.value):
        return TaskResult(ok=as_json(outcome.value))
    try:
        return TaskResult(ok=as_json(outcome.value(**kwargs)))
    except Exception as error:
        raised = TaskException(type=type(error).__name__, message=str(error), traceback=traceback.format_exc())
        message = f"{type(error).__name__}: {error}"
        return TaskResult(error=TaskFailure(error_code="UNHANDLED_EXCEPTION", message=message, exception=raised))


def as_json(value: Any) -> Any:
    """The value as it is read from the database; a TypeError or ValueError if it is not JSON."""
    return json.loads(json.dumps(value, allow_nan=False))


def _is_retried(policy: RetryPolicy | None, result: TaskResult, retries: int) -> bool:
    return (
        policy is not None
        and result.error is not None
        and result.error.error_code in policy.auto_retry_for
        and retries < policy.max_retries
    )


def _attempt(number: int, result: TaskResult, at: datetime, *, will_retry: bool) -> Attempt:
    error = result.error
    return Attempt(
        number=number,
        outcome="COMPLETED" if error is None else "FAILED",
        will_retry=will_retry,
        started_at=at,
        finished_at=at,
        error_code=None if error is None else error.error_code,
        error_message=None if error is None else error.message,
        **_place(),
    )


def _place() -> dict[str, Any]:
    return {"worker_id": WORKER_ID, **_host()}


def _host() -> dict[str, Any]:
    return {"hostname": socket.gethostname(), "pid": os.getpid()}
