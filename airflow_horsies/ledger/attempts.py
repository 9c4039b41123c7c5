"""The attempts that workers report: start and end, log lines and progress; and requests to workers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.core.log import LogChunk, LogCursor, LogLine, Progress, TaskNews, lines_of_each
from airflow_horsies.core.task import AttemptRecord
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.exceptions import WireError
from airflow_horsies.ledger.schema import PACKAGE

# The first version of the ledger with all tables of this module.
SINCE = 2


def commit_lazily() -> Script[None]:
    """Commit asynchronously; the first statement of a transaction."""
    yield Statement(sql_text(PACKAGE, "commit_lazily"))


def begin_attempt(
    task_id: str, attempt: int, *, worker_id: str, hostname: str, pid: int, started_at: datetime
) -> Script[int]:
    """Record the start; returns the number of lines already written, for an attempt that was started before."""
    (row,) = yield Statement(
        sql_text(PACKAGE, "begin_attempt"),
        {
            "horsies_task_id": task_id,
            "attempt": attempt,
            "worker_id": worker_id,
            "hostname": hostname,
            "pid": pid,
            "started_at": started_at,
        },
    )
    lines: int = row["lines"]
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedAttempt:
    """An attempt that succeeded without anything to report while it ran."""

    task_id: str
    number: int
    worker_id: str
    started_at: datetime
    finished_at: datetime


def record_attempts(ended: Sequence[CompletedAttempt], *, hostname: str, pid: int) -> Script[None]:
    """Record start and end of attempts of different tasks."""
    yield Statement(
        sql_text(PACKAGE, "record_attempts"),
        {
            "hostname": hostname,
            "pid": pid,
            "ids": [attempt.task_id for attempt in ended],
            "attempts": [attempt.number for attempt in ended],
            "worker_ids": [attempt.worker_id for attempt in ended],
            "started_ats": [attempt.started_at for attempt in ended],
            "finished_ats": [attempt.finished_at for attempt in ended],
        },
    )


def end_attempt(
    task_id: str,
    attempt: int,
    *,
    finished_at: datetime,
    outcome: str,
    error_code: str | None = None,
    error_message: str | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> Script[None]:
    yield Statement(
        sql_text(PACKAGE, "end_attempt"),
        {
            "horsies_task_id": task_id,
            "attempt": attempt,
            "finished_at": finished_at,
            "outcome": outcome,
            "error_code": error_code,
            "error_message": error_message,
            "metrics": json.dumps(metrics) if metrics else None,
        },
    )


def read_attempts(task_ids: Collection[str]) -> Script[dict[str, tuple[AttemptRecord, ...]]]:
    """The recorded attempts by task; tasks without records are omitted."""
    rows = yield Statement(sql_text(PACKAGE, "read_attempts"), {"ids": list(task_ids)})
    found: dict[str, list[AttemptRecord]] = {}
    for row in rows:
        found.setdefault(row["horsies_task_id"], []).append(_decode_attempt(row))
    return {task_id: tuple(attempts) for task_id, attempts in found.items()}


def append_lines(task_id: str, attempt: int, chunks: Sequence[LogChunk]) -> Script[None]:
    columns: dict[str, Any] = {
        "horsies_task_id": task_id,
        "attempt": attempt,
        "first_numbers": [chunk.first_number for chunk in chunks],
        "logged_ats": [chunk.logged_at for chunk in chunks],
        "levels": [chunk.level for chunk in chunks],
        "texts": ["\n".join(chunk.lines) for chunk in chunks],
    }
    items = [chunk.item for chunk in chunks]
    if any(item is not None for item in items):
        yield Statement(sql_text(PACKAGE, "append_item_lines"), {**columns, "items": items})
    else:
        # Workers also write to tables of an older version, which have no items.
        yield Statement(sql_text(PACKAGE, "append_lines"), columns)


def read_news(seen: Mapping[str, LogCursor], *, limit: int | None = None) -> Script[dict[str, TaskNews]]:
    """The next log lines and the progress by task; tasks without news are omitted."""
    after = {
        "ids": list(seen),
        "attempts": [cursor.attempt for cursor in seen.values()],
        "line_numbers": [cursor.number for cursor in seen.values()],
        "limit": limit or lines_of_each(len(seen)),
    }
    rows = yield Statement(sql_text(PACKAGE, "read_news"), after)
    lines: dict[str, list[LogLine]] = {}
    progress: dict[str, Progress] = {}
    for row in rows:
        task_lines = lines.setdefault(row["horsies_task_id"], [])
        if row["attempt"] is not None:
            task_lines.append(decode_line(row))
        if row["progress_attempt"] is not None and row["horsies_task_id"] not in progress:
            progress[row["horsies_task_id"]] = _decode_progress({**row, "attempt": row["progress_attempt"]})
    return {
        task_id: TaskNews(lines=tuple(task_lines), progress=progress.get(task_id))
        for task_id, task_lines in lines.items()
    }


def write_progress(task_id: str, progress: Progress) -> Script[None]:
    yield Statement(
        sql_text(PACKAGE, "write_progress"),
        {
            "horsies_task_id": task_id,
            "attempt": progress.attempt,
            "done": progress.done,
            "total": progress.total,
            "stage": progress.stage,
        },
    )


def read_progress(task_ids: Collection[str]) -> Script[dict[str, Progress]]:
    """The progress of the running tasks, by id."""
    rows = yield Statement(sql_text(PACKAGE, "read_progress"), {"ids": list(task_ids)})
    return {row["horsies_task_id"]: _decode_progress(row) for row in rows}


def is_cancel_requested(task_id: str) -> Script[bool]:
    (row,) = yield Statement(sql_text(PACKAGE, "find_cancel_request"), {"horsies_task_id": task_id})
    requested: bool = row["requested"]
    return requested


def decode_line(row: Row) -> LogLine:
    return LogLine(
        attempt=row["attempt"],
        number=row["line_number"],
        logged_at=row["logged_at"].astimezone(UTC),
        level=row["level"],
        text=row["line"],
        item=row["item"],
    )


def _decode_progress(row: Row) -> Progress:
    return Progress(
        attempt=row["attempt"],
        done=row["done"],
        total=row["total"],
        stage=row["stage"],
        updated_at=row["updated_at"].astimezone(UTC),
    )


def _decode_attempt(row: Row) -> AttemptRecord:
    finished_at = row["finished_at"]
    return AttemptRecord(
        number=row["attempt"],
        worker_id=row["worker_id"],
        hostname=row["hostname"],
        pid=row["pid"],
        started_at=row["started_at"].astimezone(UTC),
        finished_at=None if finished_at is None else finished_at.astimezone(UTC),
        outcome=row["outcome"],
        error_code=row["error_code"],
        error_message=row["error_message"],
        metrics=_decode_metrics(row["metrics"]) if row["metrics"] else {},
    )


def _decode_metrics(text: str) -> dict[str, Any]:
    try:
        # Standard JSON has no NaN, and later readers may refuse it.
        metrics = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        metrics = None
    if not isinstance(metrics, dict):
        raise WireError(
            f"The metrics of an attempt are not a JSON object: {text[:200]!r}. Use the same release of airflow-horsies "
            "in Airflow and in its workers."
        )
    return metrics
