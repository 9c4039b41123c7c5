"""How a horsies task that ended is told to Airflow: one exception per kind of end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_horsies.core.task import TaskView
from airflow_horsies.core.wording import one_line
from airflow_horsies.exceptions import (
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    WaitTimeout,
    WorkerLost,
)

# The same task, arguments or result will be no better on another try.
HOPELESS_CODES = frozenset(
    {
        "WORKER_RESOLUTION_ERROR",
        "WORKER_SERIALIZATION_ERROR",
        "RETURN_TYPE_MISMATCH",
        "SPARK_ANALYSIS_ERROR",
        "BAD_INPUT",
        "RESULT_TOO_LARGE",
        "RESULT_NOT_JSON",
    }
)
WORKER_LOST_CODES = frozenset({"WORKER_CRASHED"})


class TaskFailedForGood(TaskFailed, AirflowFailException):
    """The task ended FAILED with a code that no further try of Airflow's will change."""


class TaskTimedOut(WaitTimeout, AirflowTaskTimeout):
    """The task was cancelled because the time of the Airflow task was up."""


def failure_of(task: TaskView, *, fail_fast_codes: Collection[str] = ()) -> TaskFailed:
    """The exception for a task that ended FAILED: its kind decides whether Airflow tries again."""
    kind: type[TaskFailed] = TaskFailed
    if task.error_code in WORKER_LOST_CODES:
        kind = WorkerLost
    if task.error_code in HOPELESS_CODES or task.error_code in fail_fast_codes:
        kind = TaskFailedForGood
    return kind(
        f"{named(task)} failed after {len(task.attempts)} attempt(s): {failure_text(task)}",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def value_of(task: TaskView) -> Any:
    """What a task that ended COMPLETED returned; TaskFailedForGood where Airflow could not keep it."""
    value = None if task.result is None else task.result.ok
    if holds_nul(value):
        raise TaskFailedForGood(
            f"{named(task)} returned a text with a NUL character, which Airflow's database cannot hold. Remove it in "
            "the task",
            task_id=task.id,
            queue=task.queue,
            error_code="RESULT_NOT_JSON",
        )
    return value


def holds_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(map(holds_nul, value)) or any(map(holds_nul, value.values()))
        case list():
            return any(map(holds_nul, value))
    return False


def failure_text(task: TaskView) -> str:
    """The code and the message of what went wrong, in one line."""
    failure = task.result.error if task.result else None
    message = (failure.message if failure else None) or task.failed_reason or task.state.lower()
    exception = failure.exception if failure else None
    if exception is not None and exception.message and exception.message not in message:
        message = f"{exception.type}: {exception.message}"
    return one_line(f"{task.error_code}: {message}" if task.error_code else message)


def expiry_of(task: TaskView) -> TaskExpired:
    return TaskExpired(
        f"{named(task)} expired: no worker had started it by {task.good_until}",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def cancellation_of(task: TaskView) -> TaskCancelled:
    return TaskCancelled(
        f"{named(task)} was cancelled at {task.finished_at}",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def fail_or_skip(error: TaskError, choice: str) -> NoReturn:
    if choice == "skip":
        raise AirflowSkipException(str(error)) from error
    raise error


def named(task: TaskView) -> str:
    return f"horsies task {task.id} ({task.task_name}, queue {task.queue})"
