"""Rows of horsies_tasks as text for COPY, with the columns of copy_tasks.sql in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from airflow_horsies.wire.encoding import EncodedTask

NULL = r"\N"


def task_lines(tasks: Sequence[EncodedTask], now: datetime, *, with_commands: bool) -> Iterator[str]:
    """The same values as enqueue_tasks.sql computes at the time of its transaction.

    :param with_commands: also the columns that horsies 0.5 added.
    """
    at = now.isoformat()
    for task in tasks:
        enqueued_at = at if not task.delay_seconds else (now + timedelta(seconds=task.delay_seconds)).isoformat()
        values = [
            task.id,
            _text(task.task_name),
            _text(task.queue_name),
            str(task.priority),
            NULL if task.kwargs is None else _text(task.kwargs),
            "PENDING",
            min(task.sent_at, now).isoformat(),
            enqueued_at,
            NULL if task.good_until is None else task.good_until.isoformat(),
            *("f", "0", str(task.max_retries)),
            _text(task.task_options),
            task.enqueue_sha,
            *("f", at, at),
        ]
        if with_commands:
            values += _command(task)
        yield "\t".join(values) + "\n"


def _command(task: EncodedTask) -> list[str]:
    kept = (NULL,) * 5
    if task.rerun_input is not None:
        kept = ("1", "json-utf8", "application/json", _bytes(task.input_digest), _bytes(task.rerun_input))
    return [
        "1",
        _bytes(task.command_fingerprint),
        _bytes(task.input_digest),
        _text(task.retention_class_key),
        "t" if task.retain_rerun_input else "f",
        NULL if task.idempotency_digest is None else _bytes(task.idempotency_digest),
        task.rerun_disposition,
        *kept,
    ]


def _text(value: str) -> str:
    return value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")


def _bytes(value: bytes) -> str:
    return rf"\\x{value.hex()}"
