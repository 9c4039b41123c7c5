"""Submissions that are about to be recorded, and existing tasks without a record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import TaskIdTaken, TaskNotFound
from airflow_horsies.ledger.identity import Item, Submitter
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.wire.encoding import EncodedTask, work_of
from airflow_horsies.wire.reading import FoundCommand, find_commands, is_same_command, read_tasks
from airflow_horsies.wire.statements import Wire


@dataclass(slots=True)
class Round:
    """A submission that is about to be recorded."""

    submitter: Submitter
    item: Item
    position: int
    place: int
    number: int
    task: EncodedTask
    horsies_task_id: str = ""
    key_digest: bytes | None = None

    def __post_init__(self) -> None:
        self.key_digest = self.task.idempotency_digest
        self.use_round(self.number)

    @property
    def columns(self) -> dict[str, object]:
        """The values of one round for record_submissions.sql, as JSON."""
        good_until = self.task.good_until
        return {
            "position": self.position,
            "place": None if self.place == self.position else self.place,
            "round": self.number,
            "horsies_task_id": self.horsies_task_id,
            "task_name": self.task.task_name,
            "queue_name": self.task.queue_name,
            "good_until": None if good_until is None else good_until.isoformat(),
            "work": rf"\x{self.item.work.hex()}",
            "occurrence": self.item.occurrence,
            "taken_up": self.horsies_task_id != self.task.id,
            "key_digest": None if self.key_digest is None else rf"\x{self.key_digest.hex()}",
        }

    def use_round(self, number: int) -> None:
        self.number = number
        self.task = replace(self.task, id=self.submitter.derive_task_id(self.item, number))


def needs_next_round(task_id: str, state: TaskState | None, *, is_to_be_cancelled: bool = False) -> bool:
    """Airflow retries a failed task, reattaches to a running one, and adopts a completed one.

    :param is_to_be_cancelled: a cancel is requested and not carried out yet. It no longer matters for a completed task.
    """
    if is_to_be_cancelled:
        return state is not TaskState.COMPLETED
    match state:
        case None:
            raise TaskNotFound(
                f"Task {task_id}, which this task instance sent, is past its retention in horsies, so its outcome is "
                "unknown. Clear the task instance to run it again.",
                task_id=task_id,
            )
        case TaskState.PENDING | TaskState.CLAIMED | TaskState.RUNNING | TaskState.COMPLETED:
            return False
        case TaskState.FAILED | TaskState.EXPIRED | TaskState.CANCELLED:
            return True
        case _:
            assert_never(state)


def find_unrecorded(
    wire: Wire, pending: Sequence[Round], found: dict[str, FoundCommand], asked: set[str]
) -> Script[dict[str, TaskState]]:
    """Find tasks with our derived ids that the ledger lost; they are used, or followed by the next round.

    Inserting the same id again would be worse than a duplicate: where finished tasks are moved, a row whose id is
    already in the history can never be finished.
    """
    known: dict[str, TaskState] = {}
    unchecked = {item.task.id: item for item in pending}
    while unchecked:
        found |= yield from find_commands(wire, list(unchecked.keys() - asked))
        asked |= unchecked.keys()
        next_unchecked: dict[str, Round] = {}
        existing = found.keys() & unchecked.keys()
        recorded = (yield from _find_recorded(existing)) if existing else set()
        for task_id in existing:
            item, command = unchecked[task_id], found[task_id]
            if task_id in recorded or needs_next_round(task_id, command.state):
                item.use_round(item.number + 1)
                next_unchecked[item.task.id] = item
            else:
                yield from _require_same_work(wire, item, command)
                known[task_id] = command.state
        unchecked = next_unchecked
    return known


def _require_same_work(wire: Wire, item: Round, command: FoundCommand) -> Script[None]:
    """The id is derived from the work; queue, priority and deadlines may differ."""
    if is_same_command(item.task, command):
        return
    task = (yield from read_tasks(wire, [item.task.id], whole=True)).get(item.task.id)
    if task is None or task.kwargs is None or work_of(task.task_name, task.kwargs) == item.item.work:
        return
    raise TaskIdTaken(
        f"A task with the id {item.task.id} already exists, with other arguments. Clear the task instance to send it "
        "under another id.",
        task_id=item.task.id,
        queue=item.task.queue_name,
    )


def _find_recorded(task_ids: Collection[str]) -> Script[set[str]]:
    rows = yield Statement(sql_text(PACKAGE, "find_recorded"), {"ids": sorted(task_ids)})
    return {row["horsies_task_id"] for row in rows}
