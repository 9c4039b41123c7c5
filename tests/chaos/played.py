"""Task instances outside of Airflow: what Airflow would record of each, and what people change about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

Item = Mapping[str, Any]

RUNNING, DEFERRED, RESTARTING, RETRY = "running", "deferred", "restarting", "up_for_retry"
SCHEDULED, SUCCESS, FAILED = "scheduled", "success", "failed"
ENDED = frozenset({SUCCESS, FAILED})
PRIORITIES = (1, 20, 50, 100)
BATCHES = frozenset({"batch", "chunked"})
CHUNK_SIZES = (None, 1, 2, 3, 5, "auto")


@dataclass(frozen=True)
class Code:
    """What the DAG file says at the moment."""

    items: tuple[Item, ...]
    max_failures: int = 0
    priority: int = 100
    retries: int = 2
    # None makes each item a task of its own.
    chunk_size: int | str | None = None
    on_clear: str = "all"


class Life(NamedTuple):
    """What Airflow records at a clear, and which of several runs of the same id it is."""

    generation: int
    clear_number: int
    max_tries: int


@dataclass(frozen=True)
class Try:
    """A process that began to execute the operator, and what it was to ask for."""

    at: float
    life: Life
    items: tuple[Item, ...]
    max_failures: int
    on_clear: str = "all"


@dataclass(frozen=True)
class Wish:
    """A person cleared or marked the task instance, or made its run again; ``life`` is the one this ended."""

    at: float
    what: str
    life: Life


@dataclass
class Light:
    """A task instance, as Airflow has it, and how far it is."""

    number: int
    mode: str
    host: str
    connection: str
    code: Code
    cancel_after: float = 0.0
    # When work that would go on for long is no longer wanted.
    change_after: float | None = None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    began_at: float = field(default_factory=time.monotonic)
    generation: int = 1
    clear_number: int = 0
    max_tries: int = 0
    try_number: int = 1
    exists: bool = True
    state: str | None = SCHEDULED
    was_marked: bool = False
    role: str = "execute"
    due: float = 0.0
    deferral: dict[str, Any] = field(default_factory=dict)
    # The namespace or database that its connection names while somebody has moved it.
    moved: dict[str, str] = field(default_factory=dict)
    job: int | None = None
    # Jobs that are no longer its own, and that have not ended yet.
    stale: set[int] = field(default_factory=set)
    # When each life began.
    lives: dict[Life, float] = field(default_factory=dict)
    tries: list[Try] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    # What each life returned, and to which try.
    values: dict[Life, tuple[Any, Try]] = field(default_factory=dict)
    cancelling: int | None = None
    cancel_due: float = 0.0
    cancel_began: float | None = None
    acknowledged: dict[str, float] = field(default_factory=dict)
    # The job that asks for a repair, after which it is cleared, and the places it asks for.
    repairing: int | None = None
    repair_due: float | None = None
    repair_places: list[int] | None = None
    # Whether a request may be there that nobody was told of.
    is_unsure: bool = False
    # Lives that began with a repair, and those of which nobody knows whether they did.
    repaired: set[Life] = field(default_factory=set)
    unsure: set[Life] = field(default_factory=set)
    # What happened to it, for people who wonder.
    notes: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.max_tries = self.code.retries
        self._begin_life()

    @property
    def run_id(self) -> str:
        return f"run-{self.number}"

    @property
    def key(self) -> str:
        return f"{self.run_id}-{self.mode}"

    @property
    def life(self) -> Life:
        return Life(self.generation, self.clear_number, self.max_tries)

    @property
    def is_over(self) -> bool:
        busy = self.job is not None or self.stale or self.cancelling is not None or self.change_after is not None
        return self.state in ENDED and not busy and not self.is_being_repaired

    @property
    def is_batch(self) -> bool:
        return self.mode in BATCHES

    @property
    def is_being_repaired(self) -> bool:
        return self.repairing is not None or self.repair_due is not None

    @property
    def can_change(self) -> bool:
        """Nothing else is changed between the request of a repair and its clear."""
        return self.mode != "cancelled" and not self.is_being_repaired

    @property
    def can_be_repaired(self) -> bool:
        """Whether its newest life has submitted, and nobody else does meanwhile."""
        if self.mode != "chunked" or not self.can_change or self.stale or not self.code.items:
            return False
        settled = self.state == DEFERRED or (self.state == SUCCESS and not self.was_marked)
        return settled and bool(self.tries) and self.tries[-1].life == self.life

    def note(self, text: str) -> None:
        self.notes.append((time.monotonic(), text))

    def wants_cancel(self, now: float) -> bool:
        if self.mode != "cancelled" or self.cancelling is not None or self.acknowledged or self.values:
            return False
        return now - self.began_at > self.cancel_after and now >= self.cancel_due

    # -- what Airflow does -------------------------------------------------------------------------------------------

    def begin_try(self) -> None:
        self.exists, self.state = True, RUNNING
        code = self.code
        self.tries.append(Try(time.monotonic(), self.life, code.items, code.max_failures, code.on_clear))

    def defer(self, deferral: dict[str, Any]) -> None:
        self.state, self.role, self.deferral = DEFERRED, "trigger", deferral

    def hear_event(self, event: dict[str, Any]) -> None:
        self.state, self.role, self.deferral = SCHEDULED, "resume", event

    def succeed(self, value: Any) -> None:
        self.state = SUCCESS
        self.values[self.tries[-1].life] = (value, self.tries[-1])

    def retry(self) -> None:
        """A retry changes nothing but the number of the try."""
        self.state = RETRY
        self._next_try()

    # -- what people do ----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Of one that runs, Airflow raises nothing but the run's clear_number."""
        self._wish("clear")
        if self.state == RUNNING:
            self.state = RESTARTING
        else:
            if self.state in ENDED:
                # A run that had ended is queued again.
                self.began = datetime.now(UTC)
            self.max_tries = self.try_number + self.code.retries
            self.state = None
        self.clear_number += 1
        self.was_marked = False
        self._begin_life()
        self._next_try()

    def ask_for_repair(self, places: list[int] | None) -> None:
        """A clear follows once the request is recorded."""
        self.repair_due, self.repair_places = time.monotonic(), places

    def end_request(self, *, requested: bool | None) -> bool:
        """Whether the request is recorded; None where nobody knows, and it is asked for again."""
        self.repairing = None
        if requested is None:
            self.is_unsure, self.repair_due = True, time.monotonic() + 1.0
        return bool(requested)

    def clear_for_repair(self) -> None:
        self.is_unsure = False
        self.clear()
        self.repaired.add(self.life)

    def clear_another(self) -> None:
        """Another task instance of the run."""
        self.clear_number += 1
        self._begin_life()

    def mark(self, state: str) -> None:
        self._wish(f"mark {state}")
        self.state, self.was_marked = state, True
        self.role, self.deferral = "execute", {}

    def remake(self) -> None:
        """The run is deleted, and made again under its id."""
        self._wish("delete and make again")
        self.generation += 1
        self.clear_number, self.try_number, self.max_tries = 0, 0, self.code.retries
        self.began = datetime.now(UTC)
        self.exists, self.state, self.was_marked = False, None, False
        self._begin_life()
        self._next_try()

    def queue_again(self) -> None:
        """The run is set to queued, which resets its start."""
        self.began = datetime.now(UTC)

    def edit(self, how: str, random: Random) -> None:
        self.code = EDITS[how](self.code, random)

    def _wish(self, what: str) -> None:
        self.wishes.append(Wish(time.monotonic(), what, self.life))

    def _begin_life(self) -> None:
        self.lives[self.life] = time.monotonic()
        if self.is_unsure:
            self.unsure.add(self.life)

    def _next_try(self) -> None:
        self.role, self.deferral = "execute", {}
        self.try_number += 1


# -- edits of a DAG file -----------------------------------------------------------------------------------------------


def _with_retries(code: Code, random: Random) -> Code:
    return replace(code, retries=random.choice([number for number in range(6) if number != code.retries]))


def _with_priority(code: Code, random: Random) -> Code:
    return replace(code, priority=random.choice([each for each in PRIORITIES if each != code.priority]))


def _with_max_failures(code: Code, random: Random) -> Code:
    return replace(code, max_failures=random.choice([number for number in range(4) if number != code.max_failures]))


def _with_changed_arguments(code: Code, random: Random) -> Code:
    items = [*code.items]
    if items:
        place = random.randrange(len(items))
        items[place] = next_version(items[place])
    return replace(code, items=tuple(items))


def _with_chunk_size(code: Code, random: Random) -> Code:
    return replace(code, chunk_size=random.choice([each for each in CHUNK_SIZES if each != code.chunk_size]))


def _with_on_clear(code: Code, random: Random) -> Code:
    return replace(code, on_clear="all" if code.on_clear == "failed" else "failed")


def _in_another_order(code: Code, random: Random) -> Code:
    return replace(code, items=tuple(random.sample(code.items, len(code.items))))


def _with_fewer_items(code: Code, random: Random) -> Code:
    left = random.choice((0, *range(1, max(len(code.items), 2))))
    return replace(code, items=tuple(random.sample(code.items, min(left, len(code.items)))))


def _with_more_items(code: Code, random: Random) -> Code:
    items = [*code.items]
    # A new one, or one that equals another.
    known = items and random.random() < 0.4
    more = random.choice(items) if known else {**new_item(f"added-{random.random():.6f}"), "seconds": 0.2}
    items.insert(random.randrange(len(items) + 1), more)
    return replace(code, items=tuple(items))


EDITS: Mapping[str, Callable[[Code, Random], Code]] = {
    "retries": _with_retries,
    "priority": _with_priority,
    "max_failures": _with_max_failures,
    "arguments": _with_changed_arguments,
    "order": _in_another_order,
    "fewer": _with_fewer_items,
    "more": _with_more_items,
    "chunk_size": _with_chunk_size,
    "on_clear": _with_on_clear,
}


def new_item(key: str, *, seconds: float = 0.1, fails: str = "") -> dict[str, Any]:
    """The arguments of chaos.work."""
    return {"key": key, "seconds": seconds, "fails": fails, "version": 1}


def next_version(item: Item) -> dict[str, Any]:
    """Other arguments, of work that takes not too long."""
    return {**item, "version": item["version"] + 1, "seconds": min(item["seconds"], 1.0)}
