"""Attempts, progress and log lines as JSON: one set of field names for the command line and the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_horsies.core.attempts import ShownAttempt
from airflow_horsies.core.log import LogLine, Progress

Text = Callable[[str | None], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptValues:
    attempt: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime | None
    duration_seconds: float | None
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    hostname: str | None
    pid: int | None
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressValues:
    attempt: int
    done: int
    total: int | None
    fraction: float | None
    stage: str | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineValues:
    attempt: int
    number: int
    logged_at: datetime
    level: str
    text: str


def unchanged(text: str | None) -> str | None:
    return text


def attempt_values(attempt: ShownAttempt, *, text: Text = unchanged) -> AttemptValues:
    """:param text: applied to every text that a task wrote."""
    return AttemptValues(
        attempt=attempt.number,
        outcome=attempt.outcome,
        will_retry=attempt.will_retry,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        duration_seconds=attempt.duration_seconds,
        error_code=text(attempt.error_code),
        error_message=text(attempt.error_message),
        failed_reason=text(attempt.failed_reason),
        worker_id=attempt.worker_id,
        hostname=attempt.hostname,
        pid=attempt.pid,
        metrics={
            str(text(name)): text(value) if isinstance(value, str) else value for name, value in attempt.metrics.items()
        },
    )


def progress_values(progress: Progress, *, text: Text = unchanged) -> ProgressValues:
    return ProgressValues(
        attempt=progress.attempt,
        done=progress.done,
        total=progress.total,
        fraction=progress.fraction,
        stage=text(progress.stage),
        updated_at=progress.updated_at,
    )


def line_values(line: LogLine, *, text: Text = unchanged) -> LineValues:
    return LineValues(
        attempt=line.attempt,
        number=line.number,
        logged_at=line.logged_at,
        level=line.level,
        text=text(line.text) or "",
    )


def to_plain(value: Any) -> Any:
    """A value for json.dumps: dataclasses become dicts, times become ISO text, enums become text."""
    match value:
        case datetime():
            return value.isoformat()
        case Enum():
            return str(value)
        case Mapping():
            return {key: to_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [to_plain(item) for item in value]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return value
