"""How the outcome of a horsies task is reported to Airflow: one exception per outcome."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_horsies.core.task import CancelOutcome, TaskView
from airflow_horsies.core.wording import describe_failure, failure_message
from airflow_horsies.exceptions import (
    BatchFailed,
    HorsiesError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    WaitTimeout,
    WorkerLost,
)

# Another try with the same task and arguments ends the same way.
NON_RETRYABLE_CODES = frozenset(
    {
        "WORKER_RESOLUTION_ERROR",
        "WORKER_SERIALIZATION_ERROR",
        "RETURN_TYPE_MISMATCH",
        "SPARK_ANALYSIS_ERROR",
        "BAD_INPUT",
        "PARKING_NOT_POSSIBLE",
        "RESULT_TOO_LARGE",
        "RESULT_NOT_JSON",
        "WORKFLOW_NOT_REGISTERED",
        "SUBWORKFLOW_LOAD_FAILED",
    }
)
WORKER_LOST_CODES = frozenset({"WORKER_CRASHED"})


class TaskFailedForGood(TaskFailed, AirflowFailException):
    """The task ended FAILED with an error code that another try of the Airflow task would meet again."""


class BatchFailedForGood(BatchFailed, AirflowFailException):
    """The batch failed after a repair of some items: those that every try leaves as they are, are too many."""


class TaskTimedOut(WaitTimeout, AirflowTaskTimeout):
    """The task was cancelled because the Airflow task reached its execution_timeout."""


def failure_of(task: TaskView, *, fail_fast_codes: Collection[str] = ()) -> TaskFailed:
    """The exception for a task that ended FAILED. Its class decides whether Airflow retries."""
    return kind_of_failure(task.error_code, fail_fast_codes)(
        f"The {describe_task(task)} failed after {plural(len(task.attempts), 'attempt')}: "
        f"{end_sentence(failure_text(task))} Its log is on the Horsies tab of the task instance.",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def kind_of_failure(code: str | None, fail_fast_codes: Collection[str]) -> type[TaskFailed]:
    """The class of the exception for an error code: it decides whether Airflow retries."""
    if code in NON_RETRYABLE_CODES or code in fail_fast_codes:
        return TaskFailedForGood
    return WorkerLost if code in WORKER_LOST_CODES else TaskFailed


def value_of(task: TaskView) -> Any:
    """The value that a completed task returned; TaskFailedForGood if Airflow cannot store it."""
    value = None if task.result is None else task.result.ok
    require_storable(value, task)
    return value


def require_storable(value: Any, task: TaskView) -> None:
    if contains_nul(value):
        raise TaskFailedForGood(
            f"The {describe_task(task)} returned text with a NUL character, which Airflow's database cannot store. "
            "Remove the character in the task.",
            task_id=task.id,
            queue=task.queue,
            error_code="RESULT_NOT_JSON",
        )


def contains_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(map(contains_nul, value)) or any(map(contains_nul, value.values()))
        case list():
            return any(map(contains_nul, value))
    return False


def failure_text(task: TaskView) -> str:
    """The code and the message of the error, in one line."""
    return describe_failure(task.error_code, failure_message(task))


def expiry_of(task: TaskView) -> TaskExpired:
    return TaskExpired(
        f"The {describe_task(task)} expired: no worker started it by {task.good_until}. Set a later good_until, or add "
        "workers for the queue.",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def cancellation_of(task: TaskView) -> TaskCancelled:
    return TaskCancelled(
        f"The {describe_task(task)} was cancelled at {task.finished_at}. Clear the Airflow task to submit it again.",
        task_id=task.id,
        queue=task.queue,
        error_code=task.error_code,
    )


def fail_or_skip(error: TaskError, choice: str) -> NoReturn:
    if choice == "skip":
        raise AirflowSkipException(str(error)) from error
    raise error


def describe_task(task: TaskView) -> str:
    return f"horsies task {task.id} ({task.task_name}, queue {task.queue})"


def plural(count: int, noun: str) -> str:
    """``1 task`` or ``2 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def describe_missing_task(task_id: str, noun: str = "task") -> str:
    return f"Horsies no longer keeps {noun} {task_id}. Clear the Airflow task to submit it again."


def describe_release_failure(error: HorsiesError) -> str:
    return f"Unfinished tasks could not be cancelled and continue: {error}"


def describe_release(outcomes: Collection[CancelOutcome]) -> str | None:
    """Why tasks that were released continue, if some do."""
    if CancelOutcome.REQUESTED in outcomes:
        return "Unfinished tasks will be cancelled as soon as horsies can record it."
    if CancelOutcome.STILL_WANTED in outcomes:
        return "Unfinished tasks continue, because a later try or another task instance waits for them."
    return None
