"""A batch: many items of one task, each a task of its own or a part of a chunk."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from airflow_horsies.core.chunk import ISOLATIONS, Isolation
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import SubmitOutcome, TaskInstanceKey
from airflow_horsies.core.task import Attempt, TaskResult, TaskState, TaskView
from airflow_horsies.core.validation import require
from airflow_horsies.core.wording import failure_message
from airflow_horsies.exceptions import InvalidTask, TaskNotFound

AUTO: Literal["auto"] = "auto"
MAX_CHUNK_SIZE = 10_000
# The number of an item that is a task of its own.
NO_NUMBER = -1

ChunkSize = int | Literal["auto"] | None

# What "auto" aims at: long enough that the cost of a task does not matter, short enough that little is repeated.
CHUNK_SECONDS = 1.5
UNMEASURED_CHUNK_SIZE = 20
MAX_AUTO_CHUNK_SIZE = 1_000


def require_chunk_size(value: object) -> None:
    if value is None or value == AUTO:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CHUNK_SIZE:
        problem = f"must be None, 'auto' or an integer from 1 to {MAX_CHUNK_SIZE}, not {value!r}"
        raise InvalidTask("chunk_size", problem)


def choose_chunk_size(items: int, seconds: float | None, slots: int) -> int:
    """The chunk size for ``"auto"``.

    :param seconds: how long an item takes; None if no item of the task has been measured.
    :param slots: how many chunks can run at a time; 0 if that is unknown. Every slot gets work.
    """
    size = UNMEASURED_CHUNK_SIZE
    if seconds is not None:
        size = min(round(CHUNK_SECONDS / max(seconds, CHUNK_SECONDS / MAX_AUTO_CHUNK_SIZE)), MAX_AUTO_CHUNK_SIZE)
    if slots:
        size = min(size, math.ceil(items / slots))
    return max(size, 1)


def require_isolation(value: object) -> None:
    require(value in ISOLATIONS, "isolate", f"must be 'chunk' or 'item', not {value!r}")


def require_items(value: object) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidTask("items", f"must be a list of dicts, not {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What to send: the items of one task.

    :param task: what the items have in common; without arguments, id and idempotency key.
    :param items: the arguments of each item.
    :param chunk_size: how many items run in one horsies task, or ``"auto"``; None makes each item a task of its own.
    :param isolate: ``"item"`` gives each item of a Spark chunk a session of its own.
    :param max_failures: how many items may fail; tells a try after a success from a retry.
    """

    task: TaskSpec
    items: Sequence[Mapping[str, Any]]
    chunk_size: ChunkSize = None
    isolate: Isolation = "chunk"
    max_failures: int = 0

    def __post_init__(self) -> None:
        require_chunk_size(self.chunk_size)
        require_isolation(self.isolate)
        require_items(self.items)
        for name in ("kwargs", "task_id", "idempotency_key"):
            require(not getattr(self.task, name), name, "must not be set for the items of a batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedBatch:
    """What a submission did with the items of a batch.

    :param task_ids: the tasks that run them, in the order of their first items.
    :param is_chunked: whether some item runs in a chunk.
    """

    life: int
    size: int
    task_ids: tuple[str, ...]
    outcomes: Mapping[SubmitOutcome, int]
    is_chunked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTasks:
    """The tasks of a batch, in the order of their first items, and those of them that are chunks."""

    task_ids: tuple[str, ...]
    chunk_ids: frozenset[str] = frozenset()


@dataclass(slots=True)
class BatchPlaces:
    """Where each item of a batch runs: its task, and its number there. Two small integers an item, because there may
    be very many.

    :param task_ids: the tasks, in the order of their first items.
    :param tasks: by place, the index of the task.
    :param numbers: by place, the number of the item in its chunk; -1 if it is a task of its own.
    """

    life: int
    task_ids: list[str]
    tasks: array[int] = field(default_factory=lambda: array("i"))
    numbers: array[int] = field(default_factory=lambda: array("i"))

    @classmethod
    def of_tasks(cls, life: int, task_ids: Sequence[str]) -> BatchPlaces:
        """Each item is a task of its own."""
        return cls(life, list(task_ids), array("i", range(len(task_ids))), array("i", [NO_NUMBER]) * len(task_ids))

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def is_chunked(self) -> bool:
        return any(number != NO_NUMBER for number in self.numbers)

    def chunk_ids(self) -> list[str]:
        chunks = sorted({task for task, number in zip(self.tasks, self.numbers, strict=True) if number != NO_NUMBER})
        return [self.task_ids[index] for index in chunks]

    def by_item(self) -> ItemPlaces:
        """The place of each item, by task and number."""
        return ItemPlaces(self)

    def digest(self) -> str:
        """Another one if other tasks run the items, or in another order."""
        text = "\n".join([*self.task_ids, *map(str, self.tasks), *map(str, self.numbers)])
        return hashlib.sha256(text.encode()).hexdigest()

    def page(self, start: int, count: int) -> list[tuple[str, int]]:
        """Task and number of the items at these places."""
        part = slice(start, start + count)
        return [
            (self.task_ids[task], number) for task, number in zip(self.tasks[part], self.numbers[part], strict=True)
        ]


class ItemPlaces(Mapping[tuple[str, int], int]):
    """The places of the items of a batch by task and number: a small integer an item, because a trigger keeps them as
    long as it waits."""

    def __init__(self, batch: BatchPlaces) -> None:
        self._size = len(batch)
        # By task, in the order of the numbers, of which NO_NUMBER is the first; -1 if the batch has no such item.
        self._places: dict[str, array[int]] = {task_id: array("i") for task_id in batch.task_ids}
        for place, (task, number) in enumerate(zip(batch.tasks, batch.numbers, strict=True)):
            places, index = self._places[batch.task_ids[task]], number - NO_NUMBER
            places.extend([-1] * (index + 1 - len(places)))
            places[index] = place

    def __getitem__(self, item: tuple[str, int]) -> int:
        task_id, number = item
        places, index = self._places[task_id], number - NO_NUMBER
        if not 0 <= index < len(places) or places[index] < 0:
            raise KeyError(item)
        return places[index]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for task_id, places in self._places.items():
            yield from ((task_id, number) for number, place in enumerate(places, NO_NUMBER) if place >= 0)

    def __len__(self) -> int:
        return self._size


def locate_items(
    rows: Iterable[tuple[str, int, int, Sequence[int] | None]], *, life: int | None, size: int | None
) -> BatchPlaces:
    """
    The places of a batch; an error if some are missing.

    :param rows: of each task that is still requested: id, life, place, and the places of the items if it is a chunk.
    :param life: the life that submitted it; None, from an older release, takes the newest.
    :param size: the number of items; None if an older release did not record it.
    """
    wanted = [row for row in rows if life in (None, row[1])]
    by_place: dict[int, tuple[str, int]] = {}
    for task_id, _, place, places in wanted:
        numbered = [(place, NO_NUMBER)] if places is None else [(p, number) for number, p in enumerate(places)]
        by_place.update((p, (task_id, number)) for p, number in numbered if p >= 0)
    expected = len(by_place) if size is None else size
    if not expected or len(by_place) != expected or (min(by_place), max(by_place)) != (0, expected - 1):
        raise _incomplete(len(by_place), by_place[min(by_place)][0] if by_place else "(none)", size)
    found = BatchPlaces(max(row[1] for row in wanted), [])
    indices: dict[str, int] = {}
    for place in range(expected):
        task_id, number = by_place[place]
        found.tasks.append(indices.setdefault(task_id, len(indices)))
        found.numbers.append(number)
    found.task_ids.extend(indices)
    return found


def find_tasks(rows: Sequence[tuple[str, int, int, int | None]], *, life: int | None, size: int | None) -> BatchTasks:
    """
    The tasks of a batch, without its items; an error if some are missing.

    :param rows: of each task that is still requested: id, life, place, and the number of requested items of a chunk.
    """
    wanted = [row for row in rows if life in (None, row[1])]
    if all(items is None for _, _, _, items in wanted):
        places = locate_items([(*row[:3], None) for row in wanted], life=life, size=size)
        return BatchTasks(task_ids=tuple(places.task_ids))
    found = sum(1 if items is None else items for _, _, _, items in wanted)
    if not found or size not in (None, found):
        raise _incomplete(found, wanted[0][0], size)
    return BatchTasks(
        task_ids=tuple(row[0] for row in wanted),
        chunk_ids=frozenset(task_id for task_id, _, _, items in wanted if items is not None),
    )


def _incomplete(found: int, first_id: str, size: int | None) -> TaskNotFound:
    return TaskNotFound(
        f"Found {found} items of the batch in the airflow_horsies tables, expected "
        f"{'at least one' if size is None else size}. The task instance has been cleared, the records are past their "
        "retention, or the connection leads to another database. The outcome of the tasks is unknown. Clear the task "
        "instance to run them again.",
        task_id=first_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemView:
    """An item of a batch as currently stored.

    :param task_id: the task that runs it.
    :param number: its number in a chunk; None if it is a task of its own.
    :param place: its place in the batch; None if it was read without its batch.
    :param tries: how often it was tried.
    :param attempt: of its chunk, in which it ended.
    """

    task_id: str
    number: int | None
    state: TaskState
    place: int | None = None
    error_code: str | None = None
    message: str | None = None
    value: Any = None
    tries: int = 0
    attempt: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    hostname: str | None = None


def item_of_task(task: TaskView, place: int | None = None) -> ItemView:
    """An item that is a task of its own."""
    completed = task.state is TaskState.COMPLETED
    return ItemView(
        task_id=task.id,
        number=None,
        state=task.state,
        place=place,
        error_code=task.error_code,
        message=None if completed or not task.state.is_terminal else failure_message(task),
        value=task.result.ok if completed and task.result else None,
        tries=len(task.attempts),
        started_at=task.started_at,
        finished_at=task.finished_at,
        hostname=task.hostname,
    )


def task_of_item(chunk: TaskView, item: ItemView | None) -> TaskView:
    """A chunk as the task of one of its items; without an outcome, the item has the state of its chunk."""
    if item is None:
        return chunk
    ended = item.finished_at or chunk.finished_at or chunk.enqueued_at
    attempt = Attempt(
        number=item.attempt or 1,
        outcome=item.state,
        will_retry=False,
        started_at=item.started_at or ended,
        finished_at=ended,
        error_code=item.error_code,
        error_message=item.message,
        hostname=item.hostname,
    )
    return replace(
        chunk,
        state=item.state,
        started_at=item.started_at,
        finished_at=item.finished_at,
        next_retry_at=None,
        hostname=item.hostname,
        worker_id=None,
        pid=None,
        error_code=item.error_code,
        failed_reason=None,
        result=TaskResult(ok=item.value) if item.state is TaskState.COMPLETED else None,
        attempts=(attempt,) if item.started_at else (),
    )


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """How far the items of a chunk are that are still requested."""

    wanted: int
    completed: int
    failed: int

    @property
    def open(self) -> int:
        """Items without an outcome."""
        return self.wanted - self.completed - self.failed


class FailureCount:
    """Counts the items of a batch that have not completed and will not: of an ended task once, and of chunks that have
    not ended at intervals.

    :param chunk_ids: the tasks of the batch that are chunks.
    :param interval: seconds between two counts of chunks that have not ended.
    """

    def __init__(self, chunk_ids: Iterable[str], interval: float) -> None:
        self._interval = interval
        self._due = 0.0
        self._ended: set[str] = set()
        # Of the tasks that have ended and are counted.
        self._failures = 0
        self._uncounted: set[str] = set()
        self._live_chunks = set(chunk_ids)
        self._counts: dict[str, ChunkCount] = {}

    def to_count(self, ended: Mapping[str, TaskState | None], now: float) -> list[str]:
        """The chunks to count now.

        :param ended: the tasks that have ended, or those of them that ended since the last call.
        """
        for task_id, state in ended.items():
            if task_id not in self._ended:
                self._end(task_id, state)
        if now < self._due:
            return sorted(self._uncounted)
        self._due = now + self._interval
        return sorted(self._uncounted | self._live_chunks)

    def _end(self, task_id: str, state: TaskState | None) -> None:
        self._ended.add(task_id)
        is_chunk = task_id in self._live_chunks
        self._live_chunks.discard(task_id)
        self._counts.pop(task_id, None)
        if state is TaskState.COMPLETED:
            return
        if is_chunk:
            self._uncounted.add(task_id)
        else:
            self._failures += 1

    def total(self, counts: Mapping[str, ChunkCount]) -> int:
        """:param counts: of the chunks to count."""
        for task_id in self._uncounted:
            # The item without an outcome has that of its chunk.
            self._failures += counts[task_id].wanted - counts[task_id].completed if task_id in counts else 1
        self._uncounted.clear()
        self._counts |= {task_id: count for task_id, count in counts.items() if task_id in self._live_chunks}
        return self._failures + sum(count.failed for count in self._counts.values())


def are_over(states: Mapping[str, TaskState], counts: Mapping[str, ChunkCount]) -> bool:
    """Whether no item is left to wait for, even if a chunk has not ended yet."""
    return all(
        state.is_terminal or (task_id in counts and not counts[task_id].open) for task_id, state in states.items()
    )


def effective_states(states: Mapping[str, TaskState], counts: Mapping[str, ChunkCount]) -> dict[str, TaskState]:
    """The states of the tasks for those who need their items: a chunk of which all requested items completed has
    completed, whatever became of the others."""
    return {
        task_id: TaskState.COMPLETED
        if task_id in counts and counts[task_id].completed == counts[task_id].wanted and state.is_terminal
        else state
        for task_id, state in states.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReference:
    """Where the items of a batch are, small enough for an XCom.

    :param counts: the number of items by state when the batch ended.
    :param digest: of the places of the items: the number of a life is used again once its records are gone.
    """

    horsies_conn_id: str
    namespace: str | None
    task_instance: TaskInstanceKey
    life: int
    size: int
    counts: Mapping[str, int] = field(default_factory=dict)
    digest: str | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BatchReference:
        """The reference from the dict in the XCom."""
        try:
            instance = TaskInstanceKey(**values["task_instance"])
            return cls(**{**values, "task_instance": instance})
        except (KeyError, TypeError):
            raise InvalidTask(
                "reference", f"must be what a batch with results='reference' returned, not {values!r}"
            ) from None


def count_states(states: Iterable[TaskState]) -> dict[str, int]:
    """The number of items in each state that occurs, in the order of the states."""
    counts = Counter(states)
    return {state.value: counts[state] for state in TaskState if counts[state]}


def in_pages(size: int, page: int) -> Iterator[range]:
    for start in range(0, size, page):
        yield range(start, min(start + page, size))
