"""One-line descriptions of attempts and progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_horsies.core.attempts import LOST, PARKED, ShownAttempt, Source, recorded_attempts
from airflow_horsies.core.log import Progress
from airflow_horsies.core.task import AttemptRecord, TaskFailure, TaskView

MAX_MESSAGE_CHARS = 500


def describe_attempts(task: TaskView, records: Collection[AttemptRecord]) -> Iterator[str]:
    """A line for each recorded attempt, first to last, and one for its metrics."""
    for attempt in recorded_attempts(task, records):
        yield describe_attempt(attempt)
        if attempt.metrics:
            yield f"attempt {attempt.number}, metrics: {describe_metrics(attempt.metrics)}"


def describe_attempt(attempt: ShownAttempt) -> str:
    """One line for a log."""
    line = f"attempt {attempt.number}: {attempt.outcome}{_when_and_where(attempt)}"
    if attempt.outcome == PARKED:
        return f"{line}. {one_line(attempt.message or '')}"
    if attempt.error_code and attempt.finished_at:
        line += f", {attempt.error_code}: {one_line(attempt.message or '')}"
    return f"{line} (will be retried)" if attempt.will_retry else line


def describe_metrics(metrics: Mapping[str, Any]) -> str:
    """``jobs 3, input rows 1,000, input 4.0 MiB, executor 12.3 s``"""
    return ", ".join(_describe_metric(name, value) for name, value in metrics.items())


def describe_progress(progress: Progress) -> str:
    """``40 % (4 of 10), stage 3 of 7``"""
    text = f"{progress.done:,} done"
    if progress.total and progress.fraction is not None:
        # Rounded down: 100 % is reached only at the end.
        text = f"{int(progress.fraction * 100)} % ({progress.done:,} of {progress.total:,})"
    return f"{text}, {progress.stage}" if progress.stage else text


def human_bytes(size: float) -> str:
    if abs(size) < 1024:
        return f"{size:,.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{size:,.1f} {unit}"
    return f"{size / 1024:,.1f} PiB"


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[: MAX_MESSAGE_CHARS - 1]}…"


def describe_failure(code: str | None, error: str) -> str:
    """The code and the message of an error, in one line."""
    return one_line(f"{code}: {error}" if code else error)


def failure_message(task: TaskView) -> str:
    """Why a task did not complete, without its code."""
    return error_message(task.result.error if task.result else None, task.failed_reason or task.state.lower())


def error_message(failure: TaskFailure | None, otherwise: str = "no message") -> str:
    """What an error says, without its code.

    :param otherwise: if it says nothing.
    """
    message = (failure.message if failure else None) or otherwise
    exception = failure.exception if failure else None
    if exception is not None and exception.message and exception.message not in message:
        return f"{exception.type}: {exception.message}"
    return message


def _when_and_where(attempt: ShownAttempt) -> str:
    seconds = attempt.duration_seconds
    if attempt.source is Source.HORSIES:
        return f" in {seconds:.2f} s on {attempt.hostname}"
    where = f"on {attempt.hostname} (worker {attempt.worker_id})"
    if seconds is None:
        return f", {'begun' if attempt.outcome == LOST else 'since'} {attempt.started_at:%Y-%m-%d %H:%M:%S} UTC {where}"
    return f" after {seconds:.1f} s {where}"


def _describe_metric(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    match value:
        case bool():
            pass
        case int() | float() if name.endswith("_bytes"):
            return f"{words.removesuffix(' bytes')} {human_bytes(value)}"
        case int() | float() if name.endswith("_seconds"):
            return f"{words.removesuffix(' seconds')} {value:,.1f} s"
        case int():
            return f"{words} {value:,}"
        case float():
            return f"{words} {value:,.2f}"
    return f"{words} {value}"
