"""Steps two writers through an order of their statements, and through all orders one after the other.

Each writer has a thread and a connection of its own. It stops before every statement, COMMIT and ROLLBACK until it is
chosen. A statement that has to wait for the other writer is known by ``pg_blocking_pids``, asked on a third connection:
its writer goes on when the other one lets it. Where both wait, Postgres would end one of them after
``deadlock_timeout``; here which one is a choice, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
# A statement takes less; only after that the lock tables are asked.
GRACE_SECONDS = 0.003
STUCK_SECONDS = 60.0
# Both settings: nothing but a choice ends a statement that waits.
SERVER_OPTIONS = "-c deadlock_timeout=1h -c lock_timeout=0"

MOVE, CUT, CUT_AFTER, ABANDON = "move", "cut", "cut after", "abandon"

Writer = Callable[["Gate"], Any]
Choose = Callable[[Sequence[str]], str]


class Stuck(Exception):
    """Nobody can move, or a statement neither ends nor waits for the other writer."""


class Diverged(Exception):
    """The same choices led elsewhere than before."""


class Abandoned(BaseException):
    """The order was given up; ends the thread of a writer."""


@dataclass(frozen=True)
class Outcome:
    """What a writer returned or raised."""

    value: Any = None
    error: Exception | None = None


@dataclass
class Order:
    """One order: what was chosen, among what, and how both writers ended."""

    choices: list[str] = field(default_factory=list)
    options: list[list[str]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    blocked: int = 0
    deadlocks: int = 0
    rollbacks: int = 0
    was_cut: bool = False
    has_unheard_commit: bool = False

    def next_prefix(self) -> list[str] | None:
        """The choices that lead to the next order, depth first; None after the last one."""
        for position in reversed(range(len(self.choices))):
            options = self.options[position]
            following = options.index(self.choices[position]) + 1
            if following < len(options):
                return [*self.choices[:position], options[following]]
        return None


class Gate:
    """Where one writer stops before each of its steps."""

    def __init__(self, name: str, label_of: Callable[[Any], str]) -> None:
        self.name = name
        self.label_of = label_of
        self.connection: SteppedConnection | None = None
        self.pid = 0
        self.joined: frozenset[str] = frozenset()
        self._parked: list[SteppedConnection] = []
        self.begin()

    def begin(self) -> None:
        """A new order."""
        self.label = ""
        self.outcome: Outcome | None = None
        self.is_blocked = False
        self.is_victim = False
        self.settled = threading.Event()
        self._commands: list[str] = []
        self._go = threading.Semaphore(0)

    @property
    def is_ready(self) -> bool:
        return self.settled.is_set() and self.outcome is None

    def connect(self, **args: Any) -> SteppedConnection:
        """A connection whose every step waits for its turn; one that was let go before is as good as a new one."""
        if self._parked:
            return self._parked.pop()
        connection = SteppedConnection.connect(**args, options=SERVER_OPTIONS, cursor_factory=SteppedCursor)
        connection.prepare_threshold = None
        connection.gate = self
        return connection

    def park(self, connection: SteppedConnection) -> None:
        """Opening one takes longer than an order."""
        if connection not in self._parked:
            self._parked.append(connection)

    def close(self) -> None:
        while self._parked:
            psycopg.Connection.close(self._parked.pop())

    def release(self, command: str) -> None:
        """Let the writer take its step, or meet its fate."""
        self.settled.clear()
        self._commands.append(command)
        self._go.release()

    def step(self, connection: SteppedConnection, label: str, action: Callable[[], Any]) -> Any:
        """In the writer's thread: wait for the turn, then act; what is joined to the step before acts at once."""
        if label in self.joined:
            return action()
        self.label = label
        self.connection, self.pid = connection, connection.pgconn.backend_pid
        self.settled.set()
        self._go.acquire()
        command = self._commands.pop(0)
        if command == ABANDON:
            raise Abandoned
        if command == CUT:
            raise psycopg.OperationalError("the connection is lost")
        try:
            result = action()
        except psycopg.errors.QueryCanceled as error:
            if not self.is_victim:
                raise
            self.is_victim = False
            raise psycopg.errors.DeadlockDetected("deadlock detected") from error
        if command == CUT_AFTER:
            raise psycopg.OperationalError("the connection is lost")
        return result

    def run(self, writer: Writer) -> None:
        """The writer's thread."""
        try:
            self.outcome = Outcome(value=writer(self))
        except Exception as error:
            self.outcome = Outcome(error=error)
        except Abandoned:
            self.outcome = Outcome(error=Stuck("abandoned"))
        finally:
            self.settled.set()


class SteppedConnection(psycopg.Connection[Any]):
    gate: Gate

    def commit(self) -> None:
        self._end(COMMIT, super().commit)

    def rollback(self) -> None:
        self._end(ROLLBACK, super().rollback)

    def close(self) -> None:
        """Ends the transaction, as the server does when a connection is gone."""
        if self.broken:
            super().close()
        elif not self.closed:
            super().rollback()
            self.gate.park(self)

    def pipeline(self) -> Any:
        """None is had here: every statement is a step."""
        return _NoPipeline()

    def _end(self, label: str, action: Callable[[], None]) -> None:
        if self.closed or self.pgconn.transaction_status == TransactionStatus.IDLE:
            action()
        else:
            self.gate.step(self, label, action)


class _NoPipeline:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        return None


class SteppedCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        connection: Any = self.connection
        label = connection.gate.label_of(query)
        action = super().execute
        return connection.gate.step(connection, label, lambda: action(query, params, **options))


class Stepper:
    """Takes two writers through one order."""

    def __init__(self, watcher: psycopg.Connection[Any], gates: Sequence[Gate], *, cuts: Mapping[str, int]) -> None:
        """``cuts`` tells how often the connection of a writer may break, by its name."""
        self._watcher = watcher
        self._gates = list(gates)
        self._cuts = dict(cuts)
        self.order = Order()

    def run(self, writers: Mapping[str, Writer], choose: Choose) -> Order:
        for gate in self._gates:
            gate.begin()
        threads = [
            threading.Thread(target=gate.run, args=(writers[gate.name],), name=gate.name, daemon=True)
            for gate in self._gates
        ]
        try:
            for gate, thread in zip(self._gates, threads, strict=True):
                thread.start()
                self._settle(gate)
            while options := self._options():
                try:
                    choice = choose(options)
                except Diverged as error:
                    ended = {gate.name: gate.outcome for gate in self._gates}
                    raise Diverged(f"{error} after {self.order.trace}; ended are {ended}") from None
                self.order.options.append(options)
                self.order.choices.append(choice)
                self._take(choice)
        except BaseException:
            self._abandon()
            raise
        finally:
            for thread in threads:
                thread.join(STUCK_SECONDS)
        self.order.outcomes = {gate.name: gate.outcome or Outcome() for gate in self._gates}
        return self.order

    def _options(self) -> list[str]:
        """Who can move; if nobody can though somebody has not ended, one of those that wait has to give way."""
        ready = [gate for gate in self._gates if gate.is_ready]
        if not ready:
            return [f"{gate.name} {ROLLBACK}" for gate in self._gates if gate.is_blocked]
        cut = [gate for gate in ready if self._cuts.get(gate.name) and _in_transaction(gate)]
        return [
            *(gate.name for gate in ready),
            *(f"{gate.name} {CUT}" for gate in cut),
            *(f"{gate.name} {CUT_AFTER}" for gate in cut if gate.label == COMMIT),
        ]

    def _take(self, choice: str) -> None:
        name, _, fate = choice.partition(" ")
        gate = next(gate for gate in self._gates if gate.name == name)
        self.order.trace.append(f"{name}: {gate.label}{f' ({fate})' if fate else ''}")
        self.order.rollbacks += gate.label == ROLLBACK
        if fate == ROLLBACK:
            self._end_deadlock(gate)
        else:
            if fate:
                self.order.was_cut = True
                self.order.has_unheard_commit |= fate == CUT_AFTER
                self._cuts[name] -= 1
            if fate == CUT and gate.connection is not None:
                gate.connection.close()
            gate.release(fate or MOVE)
        self._settle(gate)
        if gate.is_blocked:
            self.order.blocked += 1
            self.order.trace[-1] += " (waits)"
        for other in self._gates:
            if other is not gate and other.is_blocked and not self._waits(other):
                self._settle(other)

    def _end_deadlock(self, gate: Gate) -> None:
        self.order.deadlocks += 1
        gate.is_victim = True
        gate.is_blocked = False
        self._ask("SELECT pg_cancel_backend(%s)", (gate.pid,))
        if not gate.settled.wait(STUCK_SECONDS):
            raise Stuck(f"{gate.name}: {gate.label} does not end though it was told to")

    def _settle(self, gate: Gate) -> None:
        """Until the writer stands before its next step, has ended, or waits for the other one."""
        give_up = time.monotonic() + STUCK_SECONDS
        grace_seconds = GRACE_SECONDS
        while not gate.settled.wait(grace_seconds):
            if self._waits(gate):
                gate.is_blocked = True
                return
            grace_seconds *= 1.5
            if time.monotonic() > give_up:
                raise Stuck(f"{gate.name}: {gate.label} neither ends nor waits for the other writer")
        gate.is_blocked = False

    def _waits(self, gate: Gate) -> bool:
        others = [other.pid for other in self._gates if other is not gate and other.pid]
        if gate.connection is None or gate.settled.is_set():
            return False
        return bool(self._ask("SELECT pg_blocking_pids(%s) && %s::int[]", (gate.pid, others)))

    def _ask(self, query: str, params: Sequence[Any]) -> Any:
        row = self._watcher.execute(query.encode(), params).fetchone()
        return row[0] if row else None

    def _abandon(self) -> None:
        for gate in self._gates:
            if gate.connection is not None and not gate.settled.is_set():
                self._ask("SELECT pg_terminate_backend(%s)", (gate.pid,))
                gate.settled.wait(STUCK_SECONDS)
            # Whoever handles the first one stops before a further step.
            while gate.outcome is None:
                gate.release(ABANDON)
                if not gate.settled.wait(STUCK_SECONDS):
                    break


def follow(prefix: Sequence[str]) -> Choose:
    """These choices first, then always the first one there is."""
    left = list(prefix)

    def choose(options: Sequence[str]) -> str:
        if not left:
            return options[0]
        choice = left.pop(0)
        if choice not in options:
            raise Diverged(f"{choice!r} cannot be chosen among {list(options)}")
        return choice

    return choose


def prefer(name: str) -> Choose:
    """This writer as long as it can move."""
    return lambda options: name if name in options else options[0]


def explore(run: Callable[[Sequence[str]], Order]) -> Iterator[Order]:
    """All orders, depth first; each is run from the start, by the choices it begins with."""
    prefix: list[str] | None = []
    while prefix is not None:
        order = run(prefix)
        yield order
        prefix = order.next_prefix()


def _in_transaction(gate: Gate) -> bool:
    connection = gate.connection
    return connection is not None and connection.pgconn.transaction_status == TransactionStatus.INTRANS
