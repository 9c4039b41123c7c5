"""Decodes rows into frozen values; a row that cannot be decoded is a WireError, never "not found"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.core.cluster import RetentionClass, WorkerState
from airflow_horsies.core.task import Attempt, TaskException, TaskFailure, TaskResult, TaskState, TaskView
from airflow_horsies.db.statement import Row
from airflow_horsies.exceptions import WireError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Release 0.1.2 renamed the marker of the result envelope.
ENVELOPE_MARKS = ("__h_task_result__", "__task_result__")
ATTEMPT_FIELDS = 12


def decode_task(row: Row) -> TaskView:
    """A row of read_tasks or list_tasks."""
    task_id = row["id"]
    state = decode_state(task_id, row["status"])
    return TaskView(
        id=task_id,
        task_name=row["task_name"],
        queue=row["queue_name"],
        priority=row["priority"],
        state=state,
        sent_at=utc(row["sent_at"]),
        enqueued_at=row["enqueued_at"].astimezone(UTC),
        retry_count=row["retry_count"],
        max_retries=row["max_retries"],
        good_until=utc(row["good_until"]),
        claimed_at=utc(row["claimed_at"]),
        started_at=utc(row["started_at"]),
        finished_at=utc(row["finished_at"]),
        next_retry_at=utc(row["next_retry_at"]),
        worker_id=row["worker_id"],
        hostname=row["worker_hostname"],
        pid=row["worker_pid"],
        error_code=row["error_code"],
        failed_reason=row["failed_reason"],
        is_workflow_task=row["is_workflow_task"],
        kwargs=decode_kwargs(task_id, row["kwargs"], row["rerun_input"]),
        result=decode_result(task_id, row["result"], error_code=row["error_code"]),
        attempts=decode_attempts(task_id, row["attempts"]),
    )


def decode_state(task_id: str, status: str) -> TaskState:
    try:
        return TaskState(status)
    except ValueError:
        raise WireError(
            f"Task {task_id} has the status {status!r}, which this release does not know. Upgrade airflow-horsies."
        ) from None


def decode_command(row: Row) -> bytes | tuple[object, ...]:
    """The command of a task: its fingerprint, or its columns where horsies keeps no fingerprint."""
    if row["command_fingerprint"] is not None:
        return bytes(row["command_fingerprint"])
    return (
        row["task_name"],
        row["queue_name"],
        row["priority"],
        row["kwargs"],
        utc(row["good_until"]),
        row["task_options"],
    )


def decode_kwargs(task_id: str, text: str | None, rerun_input: str | None) -> Mapping[str, Any] | None:
    """A live task has its arguments, a finished one only its rerun input. Decoded here, because Postgres cannot parse
    JSON with a NUL."""
    if text is not None:
        kwargs = _loads(task_id, "kwargs", text)
    elif rerun_input is not None:
        envelope = _loads(task_id, "rerun input", rerun_input)
        kwargs = envelope.get("kwargs") if isinstance(envelope, dict) else None
    else:
        return None
    if not isinstance(kwargs, dict):
        raise unreadable(f"The kwargs of task {task_id} are not a JSON object.")
    return kwargs


def decode_result(task_id: str, text: str | None, *, error_code: str | None) -> TaskResult | None:
    """The result envelope; ``error_code`` is the column, because the envelope tags built-in codes."""
    if text is None:
        return None
    envelope = _loads(task_id, "result", text)
    if not isinstance(envelope, dict) or not any(envelope.get(mark) for mark in ENVELOPE_MARKS):
        raise unreadable(f"The result of task {task_id} is not a horsies result envelope.")
    err = envelope.get("err")
    if err is None:
        return TaskResult(ok=envelope.get("ok"))
    if not isinstance(err, dict):
        raise unreadable(f"The error of task {task_id} is not a JSON object.")
    return TaskResult(error=decode_error(err, error_code=error_code))


def decode_error(err: Mapping[str, Any], *, error_code: str | None) -> TaskFailure:
    return TaskFailure(
        error_code=error_code or _plain_code(err.get("error_code")),
        message=err.get("message"),
        data=err.get("data"),
        exception=_exception(err.get("exception")),
    )


def decode_attempts(task_id: str, text: str | None) -> tuple[Attempt, ...]:
    """The attempts in the format of the horsies archive: an array of 12-element rows."""
    if text is None:
        return ()
    rows = _loads(task_id, "attempts", text)
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == ATTEMPT_FIELDS for row in rows):
        raise unreadable(f"The attempts of task {task_id} are not rows of {ATTEMPT_FIELDS} fields.")
    return tuple(
        Attempt(
            number=number,
            outcome=outcome,
            will_retry=will_retry,
            started_at=EPOCH + timedelta(microseconds=started),
            finished_at=EPOCH + timedelta(microseconds=finished),
            error_code=error_code,
            error_message=error_message,
            failed_reason=failed_reason,
            worker_id=worker_id,
            hostname=hostname,
            pid=pid,
            process_name=process_name,
        )
        for (
            number,
            outcome,
            will_retry,
            started,
            finished,
            error_code,
            error_message,
            failed_reason,
            worker_id,
            hostname,
            pid,
            process_name,
        ) in rows
    )


def decode_worker(row: Row) -> WorkerState:
    return WorkerState(
        id=row["worker_id"],
        hostname=row["hostname"],
        pid=row["pid"],
        queues=tuple(row["queues"]),
        processes=row["processes"],
        tasks_running=row["tasks_running"],
        tasks_claimed=row["tasks_claimed"],
        started_at=row["worker_started_at"].astimezone(UTC),
        seen_at=row["snapshot_at"].astimezone(UTC),
        alive=row["alive"],
        memory_mb=row["memory_mb"],
        cpu_percent=row["cpu_percent"],
    )


def decode_retention_class(row: Row) -> RetentionClass:
    return RetentionClass(key=row["class_key"], duration=row["duration"])


def _plain_code(code: Any) -> str | None:
    if isinstance(code, dict):
        code = next(iter(code.values()), None)
    return code if isinstance(code, str) else None


def _exception(value: Any) -> TaskException | None:
    if not isinstance(value, dict):
        return None
    return TaskException(
        type=str(value.get("type") or "Exception"),
        message=str(value.get("message") or ""),
        traceback=value.get("traceback"),
    )


def _loads(task_id: str, column: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise unreadable(f"The {column} of task {task_id} cannot be read as JSON.") from None


def unreadable(problem: str) -> WireError:
    return WireError(f"{problem} Upgrade airflow-horsies if a newer release of horsies wrote it.")


def utc(instant: datetime | None) -> datetime | None:
    return None if instant is None else instant.astimezone(UTC)
