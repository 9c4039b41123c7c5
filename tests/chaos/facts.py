"""Plain facts about the trials, as they are at the end: what was sent, what became of it, and what people wished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

COMPLETED, CANCELLED = "COMPLETED", "CANCELLED"

# dag_id, run_id, task_id, map_index
Instance = tuple[str, str, str, int]
# What tells one life of a task instance from another: what Airflow records of a clear, and which run of that id it is.
LifeKey = tuple[Any, ...]


@dataclass(frozen=True)
class Sent:
    """A row of the ledger's submissions."""

    instance: Instance
    position: int
    life: int
    round: int
    task_id: str
    at: float | None = None
    # As Airflow recorded it at the time.
    key: LifeKey = ()
    # What was asked for, and which of several equal ones it is.
    work: str = ""
    occurrence: int = 0
    place: int | None = None
    released_at: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of horsies, from whichever table it was found in."""

    task_id: str
    status: str
    value: Any = None
    ended_at: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a life of a task instance: whether it succeeded, as far as Airflow knows, and with what."""

    instance: Instance
    life: int
    succeeded: bool
    value: Any = None
    # What was asked for by the try that it was returned to, item by item; None for one that sends nothing.
    asked: Sequence[Any] | None = ()
    # How many items may have no value, and whether it is a list even of one.
    max_failures: int = 0
    is_batch: bool = False
    key: LifeKey | None = None
    # When the life began; nothing that was sent before may have computed its value.
    began: float | None = None
    was_marked: bool = False
    state: str = ""
    # Whether the life keeps what completed before; None where nobody knows.
    keeps: bool | None = False

    @property
    def values(self) -> list[Any] | None:
        if not self.is_batch:
            return [self.value]
        return self.value if isinstance(self.value, list) else None


@dataclass(frozen=True)
class Asked:
    """A try began that asks for this work, each as often as it stands here."""

    instance: Instance
    at: float
    # In the order of the lives of its task instance.
    life: int
    key: LifeKey
    works: Sequence[str]
    max_failures: int = 0


@dataclass(frozen=True)
class Wish:
    """Somebody cleared, marked, cancelled or made again what was sent in this life or an earlier one, or in any."""

    instance: Instance
    at: float
    life: int | None = None


@dataclass(frozen=True)
class ItemSent:
    """An item of a chunk, as a life sent or kept it; ``chunk`` is the submission of its chunk."""

    chunk: Sent
    number: int
    work: str
    occurrence: int = 0
    round: int = 1
    place: int = 0
    # How it ended, if it did, and when that was seen first.
    outcome: str = ""
    value: Any = None
    code: str = ""
    message: str = ""
    seen_at: float | None = None


@dataclass(frozen=True)
class Ran:
    """Something was run: what was asked for, in which task, and under which claim of it."""

    task_id: str
    claim: str
    work: str
    at: float


@dataclass(frozen=True)
class Facts:
    """Everything, as it is at the end."""

    sent: Sequence[Sent] = ()
    rows: Sequence[Row] = ()
    outcomes: Sequence[Outcome] = ()
    # When somebody was told that a task is cancelled, and when the task was last seen alive.
    acknowledged: Mapping[str, float] = field(default_factory=dict)
    last_beats: Mapping[str, float] = field(default_factory=dict)
    # The error code and message of each attempt that failed, by task and number.
    failures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    asked: Sequence[Asked] = ()
    wishes: Sequence[Wish] = ()
    items: Sequence[ItemSent] = ()
    ran: Sequence[Ran] = ()
    # When lives began that keep what completed before, by task instance and life.
    repaired: Mapping[tuple[Instance, LifeKey], float] = field(default_factory=dict)
    # Lives of which nobody knows whether they do.
    unsure: Collection[tuple[Instance, LifeKey]] = ()

    @cached_property
    def by_chunk(self) -> Mapping[str, Sequence[ItemSent]]:
        """The items of each chunk, once for each life that has it."""
        found = defaultdict(list)
        for item in self.items:
            found[item.chunk.task_id].append(item)
        return found

    @cached_property
    def by_task(self) -> Mapping[str, Row]:
        return {row.task_id: row for row in self.rows}

    def is_completed(self, task_id: str) -> bool:
        """Whether a task, or some item of a chunk, has completed."""
        row, items = self.by_task.get(task_id), self.by_chunk.get(task_id, ())
        return any(item.outcome == COMPLETED for item in items) or (row is not None and row.status == COMPLETED)

    def keeps_value(self, value: Mapping[str, Any]) -> bool:
        """Whether horsies, or our record of an item, has exactly this value of work that completed."""
        row, items = self.by_task.get(value["task"]), self.by_chunk.get(value["task"], ())
        if items:
            return any(item.outcome == COMPLETED and item.value == value for item in items)
        return row is not None and row.status == COMPLETED and row.value == value


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold, and of what; ``at`` is when, where that is known."""

    rule: str
    of: str
    what: str
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.of}: {self.what}"
