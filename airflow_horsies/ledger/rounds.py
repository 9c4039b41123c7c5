"""Submissions that are about to be recorded, and existing tasks without a record."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from airflow_horsies.core.task import TaskState
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import TaskIdTaken, TaskNotFound
from airflow_horsies.ledger.identity import Item, Submitter
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.wire.encoding import EncodedTask, work_of
from airflow_horsies.wire.graphs import EncodedWorkflow
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
    task: EncodedTask | EncodedWorkflow
    horsies_task_id: str = ""
    key_digest: bytes | None = None
    # Of a task that exists already.
    state: TaskState | None = None

    def __post_init__(self) -> None:
        self.key_digest = self.task.idempotency_digest
        self.use_round(self.number)

    @property
    def columns(self) -> dict[str, object]:
        """The values of one round for record_submissions.sql, as JSON."""
        good_until = self.task.good_until
        # A task is what a record is of by default.
        kind = {} if self.task.kind is WorkKind.TASK else {"kind": self.task.kind.value}
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
            **kind,
        }

    def use_round(self, number: int) -> None:
        self.number = number
        self.task = self.task._replace(id=self.submitter.derive_task_id(self.item, number))


@dataclass(slots=True)
class ChunkRound:
    """A chunk that is about to be recorded.

    :param places: of its items in the batch; -1 for an item that a later round replaces.
    """

    task_name: str
    items: Sequence[Item]
    rounds: list[int]
    places: list[int]
    position: int
    digest: bytes
    task: EncodedTask
    # Of items of a chunk that exists already, by number.
    states: dict[int, TaskState] = field(default_factory=dict)

    @property
    def horsies_task_id(self) -> str:
        return self.task.id

    @property
    def place(self) -> int:
        """Where its first requested item stands."""
        return min((place for place in self.places if place >= 0), default=-1)

    @property
    def columns(self) -> dict[str, object]:
        """The values for record_submissions.sql, as JSON."""
        good_until = self.task.good_until
        return {
            "position": self.position,
            "place": None if self.place == self.position else self.place,
            "round": 1,
            "horsies_task_id": self.task.id,
            "task_name": self.task.task_name,
            "queue_name": self.task.queue_name,
            "good_until": None if good_until is None else good_until.isoformat(),
            # No item has it: a release that does not know chunks sends the items again.
            "work": rf"\x{self.digest.hex()}",
            "occurrence": 0,
            "taken_up": False,
            "key_digest": None,
        }

    @property
    def chunk_columns(self) -> dict[str, object]:
        """The values for record_chunks.sql, as JSON."""
        occurrences = [item.occurrence for item in self.items]
        return {
            "horsies_task_id": self.task.id,
            "task_name": self.task_name,
            "size": len(self.items),
            "works": rf"\x{b''.join(item.work for item in self.items).hex()}",
            "occurrences": occurrences if any(occurrences) else None,
            "rounds": self.rounds if max(self.rounds) > 1 else None,
            "places": self.places,
        }


def digest_chunk(task_name: str, items: Sequence[Item], rounds: Sequence[int]) -> bytes:
    digest = hashlib.sha256(task_name.encode())
    for item, round_ in zip(items, rounds, strict=True):
        digest.update(item.work)
        digest.update(b"%d,%d;" % (item.occurrence, round_))
    return digest.digest()


def needs_next_round(
    task_id: str, state: TaskState | None, *, is_to_be_cancelled: bool = False, kind: WorkKind = WorkKind.TASK
) -> bool:
    """Airflow retries a failed task, reattaches to a running one, and adopts a completed one.

    :param is_to_be_cancelled: a cancel is requested and not carried out yet. It no longer matters for a completed task.
    """
    if is_to_be_cancelled:
        return state is not TaskState.COMPLETED
    match state:
        case None:
            raise TaskNotFound(
                f"{kind.value.capitalize()} {task_id}, which this task instance sent, is past its retention in "
                "horsies, so its outcome is unknown. Clear the task instance to run it again.",
                task_id=task_id,
            )
        case TaskState.PENDING | TaskState.CLAIMED | TaskState.RUNNING | TaskState.COMPLETED:
            return False
        case TaskState.FAILED | TaskState.EXPIRED | TaskState.CANCELLED:
            return True
        case _:
            assert_never(state)


class Finder(Protocol):
    """How what was sent is found in horsies."""

    def find(self, wire: Wire, ids: Sequence[str]) -> Script[dict[str, FoundCommand]]: ...

    def require_same_work(self, wire: Wire, round_: Round, found: FoundCommand) -> Script[None]:
        """The id is derived from the work; queue, priority and deadlines may differ."""
        ...


class TaskFinder:
    """Finds tasks, live or finished."""

    def find(self, wire: Wire, ids: Sequence[str]) -> Script[dict[str, FoundCommand]]:
        return (yield from find_commands(wire, ids))

    def require_same_work(self, wire: Wire, round_: Round, found: FoundCommand) -> Script[None]:
        if isinstance(round_.task, EncodedTask):
            yield from _require_same_work(wire, round_.task, round_.item, found)


TASK_FINDER = TaskFinder()


def find_unrecorded(
    wire: Wire,
    pending: Sequence[Round],
    found: dict[str, FoundCommand],
    asked: set[str],
    finder: Finder = TASK_FINDER,
) -> Script[dict[str, TaskState]]:
    """Find tasks or workflows with our derived ids that the ledger lost; they are used, or followed by the next round.

    Inserting the same id again would be worse than a duplicate: where finished tasks are moved, a row whose id is
    already in the history can never be finished.
    """
    known: dict[str, TaskState] = {}
    unchecked = {item.task.id: item for item in pending}
    while unchecked:
        found |= yield from finder.find(wire, list(unchecked.keys() - asked))
        asked |= unchecked.keys()
        next_unchecked: dict[str, Round] = {}
        existing = found.keys() & unchecked.keys()
        recorded = (yield from find_recorded(existing)) if existing else set()
        for task_id in existing:
            item, command = unchecked[task_id], found[task_id]
            if task_id in recorded or needs_next_round(task_id, command.state):
                item.use_round(item.number + 1)
                next_unchecked[item.task.id] = item
            else:
                yield from finder.require_same_work(wire, item, command)
                known[task_id] = command.state
        unchecked = next_unchecked
    return known


def _require_same_work(wire: Wire, task: EncodedTask, item: Item, command: FoundCommand) -> Script[None]:
    if is_same_command(task, command):
        return
    known = (yield from read_tasks(wire, [task.id], whole=True)).get(task.id)
    if known is None or known.kwargs is None or work_of(known.task_name, known.kwargs) == item.work:
        return
    raise TaskIdTaken(
        f"A task with the id {task.id} already exists, with other arguments. Clear the task instance to send it under "
        "another id.",
        task_id=task.id,
        queue=task.queue_name,
    )


def find_recorded(task_ids: Collection[str]) -> Script[set[str]]:
    rows = yield Statement(sql_text(PACKAGE, "find_recorded"), {"ids": sorted(task_ids)})
    return {row["horsies_task_id"] for row in rows}
