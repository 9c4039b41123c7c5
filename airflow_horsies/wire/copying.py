"""Rows of horsies_tasks as text for COPY, with the columns of copy_tasks.sql in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from airflow_horsies.wire.encoding import Command, EncodedTask

NULL = r"\N"
KEPT_NOTHING = "\t".join((NULL,) * 5)


def task_lines(tasks: Sequence[EncodedTask], now: datetime, *, with_commands: bool) -> Iterator[str]:
    """The same values as enqueue_tasks.sql computes at the time of its transaction.

    :param with_commands: also the columns that horsies 0.5 added.
    """
    command: Command | None = None
    for task in tasks:
        if task.command is not command:
            command = task.command
            write = _writing(command, now, with_commands=with_commands)
        yield write(task)


def _writing(command: Command, now: datetime, *, with_commands: bool) -> Callable[[EncodedTask], str]:
    """Writes the rows of a command; the columns that they share are written once."""
    at = now.isoformat()
    enqueued_at = at if not command.delay_seconds else (now + timedelta(seconds=command.delay_seconds)).isoformat()
    good_until = NULL if command.good_until is None else command.good_until.isoformat()
    name = f"{_text(command.task_name)}\t{_text(command.queue_name)}\t{command.priority}"
    times = f"PENDING\t{min(command.sent_at, now).isoformat()}\t{enqueued_at}\t{good_until}"
    options = f"f\t0\t{command.max_retries}\t{_text(command.task_options)}"
    retention = f"{_text(command.retention_class_key)}\t{'t' if command.retain_rerun_input else 'f'}"

    def write(task: EncodedTask) -> str:
        sha, fingerprint, digest = task.digests
        # JSON contains neither tabs nor line breaks.
        kwargs = NULL if task.kwargs is None else task.kwargs.replace("\\", r"\\")
        both = f"{task.id}\t{name}\t{kwargs}\t{times}\t{options}\t{sha}\tf\t{at}\t{at}"
        if not with_commands:
            return f"{both}\n"
        key = NULL if task.idempotency_digest is None else _bytes(task.idempotency_digest)
        commanded = f"1\t{_bytes(fingerprint)}\t{_bytes(digest)}\t{retention}\t{key}\t{task.rerun_disposition}"
        return f"{both}\t{commanded}\t{_kept(task.rerun_input, digest)}\n"

    return write


def _kept(rerun_input: bytes | None, digest: bytes) -> str:
    if rerun_input is None:
        return KEPT_NOTHING
    return f"1\tjson-utf8\tapplication/json\t{_bytes(digest)}\t{_bytes(rerun_input)}"


def _text(value: str) -> str:
    return value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")


def _bytes(value: bytes) -> str:
    return rf"\\x{value.hex()}"
