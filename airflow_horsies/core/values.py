"""Attempts, lines and progress as plain values, for programs that read JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow_horsies.core.log import LogLine, Progress
from airflow_horsies.core.task import Attempt, AttemptRecord

Text = Callable[[str | None], str | None]


def as_it_is(text: str | None) -> str | None:
    return text


def attempt_values(attempt: Attempt, *, text: Text = as_it_is) -> dict[str, Any]:
    """
    An attempt that horsies recorded.

    :param text: what becomes of words that a task chose.
    """
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "will_retry": attempt.will_retry,
        "started_at": iso(attempt.started_at),
        "finished_at": iso(attempt.finished_at),
        "duration_seconds": attempt.duration_seconds,
        "error_code": text(attempt.error_code),
        "error_message": text(attempt.error_message),
        "failed_reason": text(attempt.failed_reason),
        "worker_id": attempt.worker_id,
        "hostname": attempt.hostname,
        "pid": attempt.pid,
    }


def record_values(record: AttemptRecord, *, text: Text = as_it_is) -> dict[str, Any]:
    """An attempt as its worker told of it."""
    return {
        "attempt": record.number,
        "outcome": record.outcome,
        "started_at": iso(record.started_at),
        "finished_at": iso(record.finished_at),
        "duration_seconds": record.duration_seconds,
        "error_code": text(record.error_code),
        "error_message": text(record.error_message),
        "worker_id": record.worker_id,
        "hostname": record.hostname,
        "pid": record.pid,
        "metrics": {
            text(name): text(value) if isinstance(value, str) else value for name, value in record.metrics.items()
        },
    }


def progress_values(progress: Progress, *, text: Text = as_it_is) -> dict[str, Any]:
    return {
        "attempt": progress.attempt,
        "done": progress.done,
        "total": progress.total,
        "fraction": progress.fraction,
        "stage": text(progress.stage),
        "updated_at": iso(progress.updated_at),
    }


def line_values(line: LogLine) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "number": line.number,
        "logged_at": iso(line.logged_at),
        "level": line.level,
        "text": line.text,
    }


def iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
