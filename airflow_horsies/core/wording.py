"""How attempts and progress are described to people, in a line each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_horsies.core.log import Progress
from airflow_horsies.core.task import Attempt, AttemptRecord, TaskState, TaskView

MAX_MESSAGE_CHARS = 500
# It began, and nobody knows how it ended: its process was killed.
LOST = "LOST"


def describe_attempts(task: TaskView, records: Collection[AttemptRecord]) -> Iterator[str]:
    """A line for each attempt, first to last, also for those of which horsies keeps none; and one for its metrics."""
    lines = {attempt.number: describe_attempt(attempt) for attempt in task.attempts}
    lines |= {record.number: describe_record(record, task) for record in unrecorded(task, records)}
    metrics = {record.number: describe_metrics(record.metrics) for record in records if record.metrics}
    for number in sorted(lines):
        yield lines[number]
        if number in metrics:
            yield f"attempt {number}, metrics: {metrics[number]}"


def describe_attempt(attempt: Attempt) -> str:
    """One line for a log."""
    told = f"attempt {attempt.number}: {attempt.outcome} in {attempt.duration_seconds:.2f} s on {attempt.hostname}"
    if attempt.error_code:
        told += f", {attempt.error_code}: {one_line(attempt.error_message or attempt.failed_reason or '')}"
    return f"{told} (will be retried)" if attempt.will_retry else told


def describe_record(record: AttemptRecord, task: TaskView) -> str:
    """The same for an attempt of which only its worker told."""
    outcome, ended = outcome_of(record, task), ended_at(record, task)
    where = f"on {record.hostname} (worker {record.worker_id})"
    if ended is None:
        begun = f"{'begun' if outcome == LOST else 'since'} {record.started_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"attempt {record.number}: {outcome}, {begun} {where}"
    told = f"attempt {record.number}: {outcome} after {(ended - record.started_at).total_seconds():.1f} s {where}"
    return f"{told}, {record.error_code}: {one_line(record.error_message or '')}" if record.error_code else told


def unrecorded(task: TaskView, records: Collection[AttemptRecord]) -> list[AttemptRecord]:
    """The attempts that horsies has no record of: one that was cancelled, one that runs now."""
    recorded = {attempt.number for attempt in task.attempts}
    return [record for record in records if record.number not in recorded]


def outcome_of(record: AttemptRecord, task: TaskView) -> str:
    """How an attempt ended that horsies has no record of, or that it runs."""
    if record.outcome is not None:
        return record.outcome
    if task.state in (TaskState.CANCELLED, TaskState.RUNNING) and _is_last(record, task):
        return str(task.state)
    return LOST


def ended_at(record: AttemptRecord, task: TaskView) -> datetime | None:
    """A cancel ends the task before its worker has stopped and told so."""
    if record.finished_at is None and outcome_of(record, task) == TaskState.CANCELLED:
        return task.finished_at
    return record.finished_at


def describe_metrics(metrics: Mapping[str, Any]) -> str:
    """``jobs 3, input rows 1,000, input 4.0 MiB, executor 12.3 s``"""
    return ", ".join(_describe_metric(name, value) for name, value in metrics.items())


def describe_progress(progress: Progress) -> str:
    """``40 % (4 of 10), stage 3 of 7``"""
    told = f"{progress.done:,} done"
    if progress.total and progress.fraction is not None:
        # Rounded down: nothing is done to 100 % before its end.
        told = f"{int(progress.fraction * 100)} % ({progress.done:,} of {progress.total:,})"
    return f"{told}, {progress.stage}" if progress.stage else told


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


def _is_last(record: AttemptRecord, task: TaskView) -> bool:
    return all(attempt.number < record.number for attempt in task.attempts)


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
