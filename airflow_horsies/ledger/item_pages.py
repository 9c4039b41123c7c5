"""The items of a batch for display, in chunks or alone: counted, ordered and paged by the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_horsies.core.log import LogCursor, LogLine
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState, TaskView
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.ledger.attempts import decode_line
from airflow_horsies.ledger.cancelling import lock_task_instance, release_tasks
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.ledger.submissions import decode_submission
from airflow_horsies.wire.encoding import COMPACT
from airflow_horsies.wire.reading import read_states
from airflow_horsies.wire.statements import Wire

ALONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedItem:
    """Where an item of a batch runs; ``number`` is None if it is a task of its own."""

    place: int
    life: int
    round: int
    task_id: str
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOrder:
    """Which items of a batch to show, and in which order."""

    sort: str
    descending: bool
    state: TaskState | None
    limit: int
    offset: int

    @property
    def is_by_place(self) -> bool:
        return self.sort == "position" and self.state is None


def count_item_states(task_ids: Sequence[str], states: Mapping[str, TaskState]) -> Script[dict[TaskState, int]]:
    """The number of items of tasks by state.

    :param states: of the tasks that horsies still keeps, read before.
    """
    statuses = [states[task_id].value if task_id in states else None for task_id in task_ids]
    rows = yield Statement(sql_text(PACKAGE, "count_item_states"), {"ids": list(task_ids), "statuses": statuses})
    return {TaskState(row["state"]): row["count"] for row in rows}


def page_items(deployment: Deployment, key: TaskInstanceKey, *, first: int, last: int) -> Script[list[PlacedItem]]:
    """The items at consecutive places, in their order."""
    params = {**deployment.params(key), "first": first, "last": last}
    rows = yield Statement(sql_text(PACKAGE, "page_items"), params)
    return [_decode_placed(row) for row in rows]


def order_items(
    deployment: Deployment,
    key: TaskInstanceKey,
    order: ItemOrder,
    task_ids: Sequence[str],
    tasks: Mapping[str, TaskView],
) -> Script[list[PlacedItem]]:
    """One page of the matching items.

    :param task_ids: the tasks of the last submission.
    :param tasks: those of them that horsies still keeps, read before.
    """
    params = {
        "ids": list(task_ids),
        "tasks": COMPACT.encode([_columns(task) for task in tasks.values()]),
        "sort": order.sort,
        "direction": -1 if order.descending else 1,
        "state": None if order.state is None else order.state.value,
        "limit": order.limit,
        "offset": order.offset,
    }
    rows = yield Statement(sql_text(PACKAGE, "order_items"), {**deployment.params(key), **params})
    return [_decode_placed(row) for row in rows]


def read_item_rounds(
    deployment: Deployment,
    key: TaskInstanceKey,
    position: int,
    *,
    life: int | None = None,
    round_: int | None = None,
    limit: int,
) -> Script[list[Submission]]:
    """The submissions of the item that stands at a position now, newest first."""
    params = deployment.params(key)
    items = yield Statement(sql_text(PACKAGE, "find_items"), {**params, "places": [position]})
    if not items or items[0]["work"] is None:
        return []
    which = {"position": position, "life": life, "wanted_round": round_, "limit": limit}
    item = {"work": bytes(items[0]["work"]), "occurrence": items[0]["occurrence"]}
    rows = yield Statement(sql_text(PACKAGE, "read_item_rounds"), {**params, **which, **item})
    return [decode_submission({**row, "number": _number(row)}) for row in _once_each(rows)]


def _once_each(rows: Rows) -> list[Row]:
    """A task that several lives kept is shown with the newest one if that still needs it, else with the first."""
    shown: dict[str, Row] = {}
    for row in rows:
        before = shown.get(row["horsies_task_id"])
        if before is None or not before["is_latest"]:
            shown[row["horsies_task_id"]] = row
    return [row for row in rows if shown[row["horsies_task_id"]] is row]


def read_item_lines(task_id: str, number: int, after: LogCursor, limit: int) -> Script[list[LogLine]]:
    """The next lines that an item of a chunk wrote."""
    params = {"horsies_task_id": task_id, "item": number, "attempt": after.attempt, "line_number": after.number}
    rows = yield Statement(sql_text(PACKAGE, "read_item_lines"), {**params, "limit": limit})
    return [decode_line(row) for row in rows]


def cancel_item(
    wire: Wire, deployment: Deployment, task_instance: TaskInstanceKey, task_id: str, number: int
) -> Script[CancelOutcome]:
    """Cancel one item of a chunk: it is not started any more. A chunk of which nothing is left to run is cancelled."""
    yield from lock_task_instance(deployment.namespace, task_instance)
    state = (yield from read_states(wire, [task_id])).get(task_id)
    if state is None or state.is_terminal:
        return CancelOutcome.ALREADY_CANCELLED if state is TaskState.CANCELLED else CancelOutcome.ALREADY_FINISHED
    params = {"horsies_task_id": task_id, "number": number}
    rows = yield Statement(sql_text(PACKAGE, "drop_item"), params)
    if not rows:
        return CancelOutcome.ALREADY_FINISHED
    if rows[0]["others_are_open"]:
        return CancelOutcome.REQUESTED
    outcomes = yield from release_tasks(wire, deployment.namespace, task_instance, [task_id])
    return outcomes.get(task_id, CancelOutcome.REQUESTED)


def _number(row: Row) -> int | None:
    return None if row["number"] == ALONE else row["number"]


def _decode_placed(row: Row) -> PlacedItem:
    return PlacedItem(
        place=row["place"],
        life=row["life"],
        round=row["round"],
        task_id=row["horsies_task_id"],
        number=_number(row),
    )


def _columns(task: TaskView) -> dict[str, object]:
    began, ended = task.started_at, task.finished_at
    return {
        "id": task.id,
        "status": task.state.value,
        "error_code": task.error_code,
        "hostname": task.hostname,
        "attempts": len(task.attempts),
        "seconds": (ended - began).total_seconds() if began and ended else None,
    }
