"""Reads tasks, their states and their commands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from typing import TypeVar

from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage, require_page_size
from airflow_horsies.core.task import TaskState, TaskView, require_states
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import TaskNotFound
from airflow_horsies.wire.decoding import (
    decode_command,
    decode_state,
    decode_task,
)
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.statements import SUMMARY_CHARS, Wire

T = TypeVar("T")
ROWS_PER_STATEMENT = 5_000


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """The state and the command of an existing task."""

    state: TaskState
    command: bytes | tuple[object, ...]


def read_tasks(
    wire: Wire, ids: Collection[str], *, whole: bool = True, message_chars: int = SUMMARY_CHARS
) -> Script[dict[str, TaskView]]:
    """The existing tasks by id; unless ``whole``, without arguments and results, and with truncated messages."""
    found: dict[str, TaskView] = {}
    for chunk in _chunks(list(ids)):
        rows = yield wire.read_tasks(chunk, whole=whole, message_chars=message_chars)
        found.update((row["id"], decode_task(row)) for row in rows)
    return found


def read_task(wire: Wire, task_id: str) -> Script[TaskView]:
    found = yield from read_tasks(wire, [task_id])
    if task_id not in found:
        raise task_not_found(task_id)
    return found[task_id]


def read_states(wire: Wire, ids: Collection[str]) -> Script[dict[str, TaskState]]:
    """The states of the existing tasks, by id; cheaper than reading the tasks."""
    found = yield from read_statuses(wire, ids)
    return {task_id: decode_state(task_id, status) for task_id, status in found.items()}


def read_statuses(wire: Wire, ids: Collection[str]) -> Script[dict[str, str]]:
    """As read_states, not decoded, so that one unknown status does not fail a read for many waiters."""
    found: dict[str, str] = {}
    for chunk in _chunks(list(ids)):
        rows = yield wire.read_states(chunk)
        found.update((row["id"], row["status"]) for row in rows)
    return found


def read_waited_for(wire: Wire, ids: Collection[str]) -> Script[dict[str, TaskState]]:
    """As read_states; TaskNotFound for a missing task, unless it may be moving to the history."""
    found = yield from read_states(wire, ids)
    absent = set(ids) - found.keys()
    if absent and not wire.schema.cutover_is_pending:
        raise task_not_found(min(absent))
    return found


def count_states(wire: Wire, ids: str) -> Script[dict[TaskState, int]]:
    """The number of existing tasks per state; ``ids`` is an array as Postgres text."""
    rows = yield wire.count_states(ids)
    return {decode_state("(one of many)", row["status"]): row["count"] for row in rows}


def order_tasks(
    wire: Wire, ids: str, *, sort: str, descending: bool, state: TaskState | None, limit: int, offset: int
) -> Script[tuple[int, list[str]]]:
    """The number of tasks in a state, or of all, and the ids of one page of them."""
    rows = yield wire.order_tasks(ids, sort=sort, descending=descending, state=state, limit=limit, offset=offset)
    return rows[0]["total"], [row["id"] for row in rows if row["id"] is not None]


def list_tasks(
    wire: Wire,
    *,
    states: Collection[TaskState] | None = None,
    queue: str | None = None,
    task_name: str | None = None,
    error_code: str | None = None,
    before: PageCursor | None = None,
    limit: int = 50,
    with_attempts: bool = False,
) -> Script[TaskPage]:
    """One page, newest first. It reads one more row to see whether there is a next page."""
    require_page_size(limit)
    rows = yield wire.list_tasks(
        states=None if states is None else require_states(states),
        queue=queue,
        task_name=task_name,
        error_code=error_code,
        before=before,
        limit=limit + 1,
        with_attempts=with_attempts,
    )
    tasks = tuple(decode_task(row) for row in rows[:limit])
    more = len(rows) > limit
    return TaskPage(tasks=tasks, next=PageCursor(at=tasks[-1].enqueued_at, task_id=tasks[-1].id) if more else None)


def find_failed(wire: Wire, *, window: int, limit: int, before: PageCursor | None = None) -> Script[FailedTasks]:
    """The failed and expired tasks among the last ``window`` tasks, newest first, at most ``limit``."""
    rows = yield wire.find_failed(window=window, limit=limit, before=before)
    found = [row for row in rows if row["id"] is not None]
    ids = tuple(row["id"] for row in found)
    span = rows[0]
    if len(found) == limit:
        searched_to = PageCursor(at=found[-1]["enqueued_at"].astimezone(UTC), task_id=found[-1]["id"])
        return FailedTasks(ids=ids, searched_to=searched_to.at, next=searched_to)
    if span["searched_to"] is None:
        return FailedTasks(ids=ids, searched_to=None, next=None)
    searched_to = PageCursor(at=span["searched_to"].astimezone(UTC), task_id=span["last_id"])
    return FailedTasks(ids=ids, searched_to=searched_to.at, next=searched_to if span["searched"] == window else None)


def task_not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"Task {task_id} is not in this database: it never existed, or it has finished and is past its retention. "
        "Check the id and the database of the connection.",
        task_id=task_id,
    )


def find_commands(wire: Wire, ids: Sequence[str]) -> Script[dict[str, FoundCommand]]:
    """The commands of the existing tasks with these ids, live or finished."""
    answers = []
    for chunk in _chunks(ids):
        answers.append((yield wire.find_commands(chunk)))
    return {
        row["id"]: FoundCommand(decode_state(row["id"], row["status"]), decode_command(row))
        for rows in answers
        for row in rows
    }


def is_same_command(task: EncodedTask, found: FoundCommand) -> bool:
    return found.command in (task.command_fingerprint, task.command_columns)


def _chunks(items: Sequence[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, ROWS_PER_STATEMENT)):
        yield chunk
