"""Runs scripts on Postgres: synchronously for operators, asynchronously for triggers.

Driver errors become ours here and nowhere else. ``psycopg2`` serves the synchronous side where Airflow's Postgres
provider picks it; the asynchronous side is always ``psycopg``.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import select
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Generic, NoReturn, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

import psycopg
import psycopg2
from psycopg.conninfo import conninfo_to_dict

from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnreachable,
    HistoryPartitionMissing,
    ListenUnavailable,
)
from airflow_horsies.wire.limiting import limit_transaction
from airflow_horsies.wire.listening import TASK_DONE
from airflow_horsies.wire.statement import CopyIn, Row, Rows, Script, Statement

T = TypeVar("T")

POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg", "postgres")
DRIVER_ERRORS: tuple[type[Exception], ...] = (psycopg.Error, psycopg2.Error)
# A serialisation failure, a deadlock, or two first claims of one idempotency key: nothing was committed.
RERUN_SQLSTATES = frozenset({"40001", "40P01", "23505"})
RERUN_PAUSES_SECONDS = (0.2, 2.0)
# No server, or it went away: a shutdown, a start, idle for too long, no connection left. Class 08 is the same.
LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
# A server that takes no writes for now: a standby, as after a failover, or one whose disk is full.
READ_ONLY_SQLSTATE = "25006"
# A lock that could not be had in time, and a statement that was cancelled or took too long.
BUSY_SQLSTATES = frozenset({"55P03", "57014", READ_ONLY_SQLSTATE})
# Conflicts between transactions, and resources that are used up.
BUSY_CLASSES = ("40", "53")
POOLER_TRIALS = 3
COPIED_AT_ONCE = 500
# For all hosts of a connection together; libpq's connect_timeout is for each of them.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a statement may wait for a lock, run on the server, and stay without an answer.

    A stricter limit that the database or the role has is kept.
    """

    lock_seconds: float = 10.0
    statement_seconds: float = 20.0
    answer_seconds: float = 30.0

    @property
    def statement(self) -> Statement:
        return limit_transaction(lock_seconds=self.lock_seconds, statement_seconds=self.statement_seconds)


LIMITS = Limits()


class Backoff:
    """Pauses that grow, each shortened by chance: many who were refused at once do not come back at once."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first = min(first_seconds, most_seconds)
        self._most = most_seconds
        self._next = self._first

    def next_pause(self) -> float:
        pause = self._next
        self._next = min(pause * 2, self._most)
        return jittered(pause)

    def reset(self) -> None:
        self._next = self._first


def jittered(seconds: float) -> float:
    """From half of it to all of it."""
    return random.uniform(seconds / 2, seconds)  # noqa: S311


def args_of_url(url: str) -> dict[str, Any]:
    """How to connect, as a URL says that SQLAlchemy takes, too; a ValueError, without a word of it, if none can."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in POSTGRES_SCHEMES:
        try:
            return dict(conninfo_to_dict(f"postgresql://{rest}"))
        except psycopg.Error:
            pass
    # Not from the driver's error, which tells what it could not read, a password among it.
    raise ValueError("no URL of a Postgres database")


@dataclass(frozen=True, slots=True)
class Database:
    """One Postgres database: how to reach it, and where notifications can be had.

    :param has_tokens: its password is a token, another one each time the connection is looked up.
    """

    # Both hold the password.
    connect_args: Mapping[str, Any] = field(repr=False)
    listen_args: Mapping[str, Any] = field(repr=False)
    use_psycopg: bool = True
    has_tokens: bool = False

    @property
    def key(self) -> Hashable:
        """The same for all who can share connections."""
        left_out = {"password"} if self.has_tokens else set()
        return tuple(
            frozenset((name, value) for name, value in args.items() if name not in left_out)
            for args in (self.connect_args, self.listen_args)
        )

    @property
    def address(self) -> str:
        """For messages: where, never with which password."""
        args = self.connect_args
        return (
            f"database {args.get('dbname') or '(default)'} of {args.get('user') or '(default user)'} "
            f"at {args.get('host') or 'localhost'}:{args.get('port') or 5432}"
        )

    def connect(self, args: Mapping[str, Any] | None = None) -> Any:
        """A new synchronous connection of the driver in use."""
        args = self.connect_args if args is None else args
        with self.translated():
            if self.use_psycopg:
                return psycopg.connect(**_unprepared(args))
            return psycopg2.connect(**args)

    async def connect_async(self, args: Mapping[str, Any] | None = None) -> psycopg.AsyncConnection[Any]:
        """A new asynchronous connection in autocommit mode; DatabaseUnreachable if it cannot be had in time."""
        args = self.connect_args if args is None else args
        with self.translated():
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await psycopg.AsyncConnection.connect(**_unprepared(args), autocommit=True)
            except TimeoutError:
                raise psycopg.OperationalError(f"no connection within {CONNECT_SECONDS:.0f} s") from None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Every driver error leaves as one of ours, from its cause."""
        try:
            yield
        except DRIVER_ERRORS as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        sqlstate = sqlstate_of(error)
        said = _first_line(error)
        if sqlstate in ("28P01", "28000") or "authentication failed" in said:
            raise AccessDenied(f"{self.address} refused the log-in: {said}") from error
        if sqlstate == "42501":
            raise AccessDenied(f"{self.address}: {said}. Ask its owner for the privilege that is named here") from error
        if sqlstate == "3D000":
            raise DatabaseUnreachable(f"{self.address} does not exist: {said}") from error
        if is_connection_lost(error):
            raise DatabaseUnreachable(f"{self.address} cannot be reached: {said}") from error
        if is_busy(error):
            raise DatabaseBusy(f"{self.address} refused a statement for now: {said}") from error
        if _lacks_history_partition(error):
            raise HistoryPartitionMissing(HISTORY_PARTITION_MISSING.format(address=self.address)) from error
        raise DatabaseError(f"{self.address} refused a statement: {said}") from error


class Shared(Protocol):
    """What those share who wait on one event loop for one database."""

    database: Database

    @property
    def is_idle(self) -> bool: ...


AnyShared = TypeVar("AnyShared", bound=Shared)


class PerLoop(Generic[AnyShared]):
    """One value per event loop and key, made when it is first asked for."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, AnyShared]] = WeakKeyDictionary()

    def get(self, key: Hashable, database: Database, make: Callable[[], AnyShared]) -> AnyShared:
        # A value refers to its loop, so the entry of a loop that was closed would stay for ever.
        for closed in [loop for loop in self._values if loop.is_closed()]:
            del self._values[closed]
        values = self._values.setdefault(asyncio.get_running_loop(), {})
        if key not in values:
            for unused in [each for each, value in values.items() if value.is_idle]:
                del values[unused]
            values[key] = make()
        if database.has_tokens:
            # The next connection is opened with the newest token.
            values[key].database = database
        return values[key]

    def __len__(self) -> int:
        """For how many event loops there are values."""
        return len(self._values)


class Session:
    """One synchronous connection, opened when first needed and opened anew when it was lost.

    :param limits: what the server keeps for each statement; whoever hangs up leaves nothing behind that waits longer.
    """

    def __init__(self, database: Database, *, limits: Limits | None = None) -> None:
        self.database = database
        self._limits = limits
        self._connection: Any = None

    def run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = False) -> T:
        """Run a script in one transaction, and again from the start when it was cut short.

        A connection that breaks during the commit leaves open whether it happened, so every script must come to the
        same end when it is run after itself.

        :param pipelined: go to the server only when the script looks at rows. Not for texts of several commands.
        """
        with self.database.translated():
            for pause_seconds in (*RERUN_PAUSES_SECONDS, None):
                connection = self._open()
                try:
                    with _pipeline(connection) if pipelined else nullcontext() as pipeline:
                        outcome = run(connection, self._limited(make_script()), pipeline)
                        connection.commit()
                    return outcome
                except DRIVER_ERRORS as error:
                    _roll_back(connection)
                    if needs_new_connection(error, connection):
                        self.close()
                    if pause_seconds is None or not asks_for_rerun(error, connection):
                        raise
                    time.sleep(jittered(pause_seconds))
                except BaseException:
                    _roll_back(connection)
                    raise
        raise AssertionError("the last run returns or raises")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

    def hang_up(self) -> None:
        """Called on another thread: who waits on the connection for an answer waits no longer."""
        connection = self._connection
        if connection is not None:
            with suppress(OSError, *DRIVER_ERRORS), socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def _limited(self, script: Script[T]) -> Script[T]:
        if self._limits is not None:
            yield self._limits.statement
        return (yield from script)

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = self.database.connect()
        return self._connection


def run(connection: Any, script: Script[T], pipeline: psycopg.Pipeline | None = None) -> T:
    """Run a script on a connection the caller owns, in whatever transaction it is in.

    With a pipeline, a statement is waited for when the script looks at its rows, or at the rows of a later one.
    """
    try:
        statement = next(script)
        while True:
            cursor = connection.cursor()
            if isinstance(statement, CopyIn):
                _copy_in(cursor, statement)
            else:
                cursor.execute(statement.sql, statement.params or None)
            statement = script.send(_rows(cursor) if pipeline is None else LateRows(cursor, pipeline))
    except StopIteration as stop:
        outcome: T = stop.value
        return outcome


class LateRows(Sequence[Row]):
    """The rows of a statement that was sent; they come when they are looked at."""

    def __init__(self, cursor: psycopg.Cursor[Any], pipeline: psycopg.Pipeline) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    @cached_property
    def _came(self) -> Rows:
        self._pipeline.sync()
        return _rows(self._cursor)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        return self._came[index]

    def __len__(self) -> int:
        return len(self._came)


def _copy_in(cursor: Any, statement: CopyIn) -> None:
    if hasattr(cursor, "copy"):
        with cursor.copy(_query(statement)) as copying:
            lines = iter(statement.lines)
            while chunk := "".join(islice(lines, COPIED_AT_ONCE)):
                copying.write(chunk)
    else:
        cursor.copy_expert(statement.sql, io.StringIO("".join(statement.lines)))


def _pipeline(connection: Any) -> AbstractContextManager[psycopg.Pipeline | None]:
    # psycopg2 has none.
    if hasattr(connection, "pipeline") and psycopg.Pipeline.is_supported():
        pipeline: AbstractContextManager[psycopg.Pipeline] = connection.pipeline()
        return pipeline
    return nullcontext()


async def run_async(
    connection: psycopg.AsyncConnection[Any], make_script: Callable[[], Script[T]], limits: Limits = LIMITS
) -> T:
    """Run a script in one transaction on a connection the caller owns, in autocommit mode; within the limits."""
    with _Patience(connection, limits.answer_seconds) as patience:
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.execute(_query(limits.statement), limits.statement.params)
            script = make_script()
            try:
                statement = next(script)
                while True:
                    patience.renew()
                    await cursor.execute(_query(statement), statement.params or None)
                    statement = script.send(_as_rows(cursor, await cursor.fetchall() if cursor.description else []))
            except StopIteration as stop:
                patience.renew()
                outcome: T = stop.value
                return outcome


class _Patience:
    """Closes a connection whose server does not answer in time, so that whoever waits for it is told.

    A time-out around the wait would not do: a transaction that is left asks the server again.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up)

    def _give_up(self) -> None:
        self._is_over = True
        hang_up(self._connection)

    def __enter__(self) -> _Patience:
        self.renew()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_over and isinstance(error, psycopg.Error):
            raise psycopg.OperationalError(f"no answer within {self._seconds:.0f} s") from error


def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """End a connection's conversation in both directions: whoever waits for an answer finds it lost, at once.

    The connection itself is not closed here, as the event loop may still wait for its descriptor.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as link:
        link.shutdown(socket.SHUT_RDWR)


class Listener:
    """A connection that hears ``task_done``. Read the tables only after it was opened."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = database.connect(database.listen_args)
        try:
            with database.translated():
                self._connection.autocommit = True
                self._require_session()
                self._execute("LISTEN task_done")
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_seconds: float) -> set[str]:
        """The ids of tasks that ended; empty when the time was up."""
        with self._database.translated():
            return (
                self._wait_psycopg(timeout_seconds)
                if self._database.use_psycopg
                else self._wait_psycopg2(timeout_seconds)
            )

    def _wait_psycopg(self, timeout_seconds: float) -> set[str]:
        # stop_after returns with everything that came in one packet, not with one message alone.
        return {
            message.payload
            for message in self._connection.notifies(timeout=timeout_seconds, stop_after=1)
            if message.channel == TASK_DONE
        }

    def _wait_psycopg2(self, timeout_seconds: float) -> set[str]:
        connection = self._connection
        connection.poll()
        if not connection.notifies:
            select.select([connection], [], [], timeout_seconds)
            connection.poll()
        heard = {message.payload for message in connection.notifies if message.channel == TASK_DONE}
        connection.notifies.clear()
        return heard

    def close(self) -> None:
        with suppress(*DRIVER_ERRORS):
            self._connection.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _require_session(self) -> None:
        """LISTEN through a pooler in transaction mode is accepted and never hears anything, so it is looked for.

        A pooler invents the process id that it tells its client. In transaction mode it lends the backend that just
        served us to the next client, or serves us from another one.
        """
        backend = self._backend_pid(self._connection)
        if backend == self._connection.info.backend_pid:
            return
        for _ in range(POOLER_TRIALS):
            other = self._database.connect(self._database.listen_args)
            try:
                lent = self._backend_pid(other) == backend
                again = None if lent else self._backend_pid(self._connection)
            finally:
                other.close()
            if lent or again != backend:
                raise ListenUnavailable(LISTEN_THROUGH_POOLER.format(address=self._database.address))

    @staticmethod
    def _backend_pid(connection: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid: int = cursor.fetchone()[0]
            return pid

    def _execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


async def listen_async(database: Database, limits: Limits = LIMITS) -> psycopg.AsyncConnection[Any]:
    """A connection that hears ``task_done``, for the asynchronous side; the same rules as Listener."""
    connection = await database.connect_async(database.listen_args)
    try:
        with database.translated():
            await _require_session_async(database, connection, limits)
            await listen_again(connection, limits)
    except BaseException:
        await connection.close()
        raise
    return connection


async def listen_again(connection: psycopg.AsyncConnection[Any], limits: Limits = LIMITS) -> None:
    """It listens already, so this asks for nothing but an answer: silence alone does not tell a lost connection."""
    with _Patience(connection, limits.answer_seconds):
        await connection.execute("LISTEN task_done")


async def _require_session_async(database: Database, connection: psycopg.AsyncConnection[Any], limits: Limits) -> None:
    backend = await _backend_pid_async(connection, limits)
    if backend == connection.info.backend_pid:
        return
    for _ in range(POOLER_TRIALS):
        async with await database.connect_async(database.listen_args) as other:
            lent = await _backend_pid_async(other, limits) == backend
            if lent or await _backend_pid_async(connection, limits) != backend:
                raise ListenUnavailable(LISTEN_THROUGH_POOLER.format(address=database.address))


async def _backend_pid_async(connection: psycopg.AsyncConnection[Any], limits: Limits) -> int:
    with _Patience(connection, limits.answer_seconds):
        row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    pid: int = row[0] if row else 0
    return pid


LISTEN_THROUGH_POOLER = (
    "{address} is reached through a connection pooler in transaction mode, where notifications never arrive. Give the "
    'connection\'s extra a direct way with listen_host and listen_port, or set "listen": "poll" to wait by polling'
)
HISTORY_PARTITION_MISSING = (
    "{address}: horsies' history has no partition for now, so that no task can end or be cancelled. Workers create the "
    "partitions some days ahead, and none has run for longer than that. Start one ('horsies worker your_module:app'), "
    "then try again"
)


def sqlstate_of(error: BaseException | None) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def is_connection_lost(error: Exception) -> bool:
    """No server, or it went away, or an operational error without a state."""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("08") or state in LOST_SQLSTATES
    return isinstance(error, psycopg.OperationalError | psycopg2.OperationalError | psycopg2.InterfaceError)


def is_busy(error: Exception) -> bool:
    """A refusal that passes: nothing is wrong with the statement, nor with who asks."""
    state = sqlstate_of(error) or ""
    return state in BUSY_SQLSTATES or state.startswith(BUSY_CLASSES)


def needs_new_connection(error: Exception, connection: Any) -> bool:
    """Whether the connection is lost, or leads to a server that takes no writes: a new one may lead to another."""
    return is_connection_lost(error) or bool(connection.closed) or sqlstate_of(error) == READ_ONLY_SQLSTATE


def asks_for_rerun(error: Exception, connection: Any) -> bool:
    """Whether to run a script again at once. Not after a time limit, which has taken the caller's time already."""
    return needs_new_connection(error, connection) or sqlstate_of(error) in RERUN_SQLSTATES


def misses_the_schema(error: BaseException) -> bool:
    """Whether a statement does not fit the tables, as after an upgrade of horsies; class 42 also has privileges."""
    state = sqlstate_of(error) or sqlstate_of(error.__cause__) or ""
    return state.startswith("42") and state != "42501"


def _lacks_history_partition(error: Exception) -> bool:
    # A check that fails has a name, and messages are in the server's language.
    diagnostics = getattr(error, "diag", None)
    return (
        sqlstate_of(error) == "23514"
        and diagnostics is not None
        and not diagnostics.constraint_name
        and str(diagnostics.table_name).startswith("horsies_task_history")
    )


def _unprepared(args: Mapping[str, Any]) -> dict[str, Any]:
    """A pooler in transaction mode has no prepared statements, and nobody tells whether there is one."""
    return {**args, "prepare_threshold": None}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _rows(cursor: Any) -> Rows:
    return _as_rows(cursor, cursor.fetchall() if cursor.description else [])


def _as_rows(cursor: Any, fetched: list[Any]) -> Rows:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in fetched]


def _query(statement: Statement) -> bytes:
    return statement.sql.encode()


def _roll_back(connection: Any) -> None:
    with suppress(*DRIVER_ERRORS):
        connection.rollback()
