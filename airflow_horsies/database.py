"""Runs scripts on Postgres: synchronously for operators, asynchronously for triggers.

Driver errors become ours here and nowhere else. ``psycopg2`` serves the synchronous side where Airflow's Postgres
provider picks it; the asynchronous side is always ``psycopg``.
"""

from __future__ import annotations

import io
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn, TypeVar, overload

import psycopg
import psycopg2
from psycopg.conninfo import conninfo_to_dict

from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseError,
    DatabaseUnreachable,
    ListenUnavailable,
)
from airflow_horsies.wire.listening import TASK_DONE
from airflow_horsies.wire.statement import CopyIn, Row, Rows, Script, Statement

T = TypeVar("T")

POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg", "postgres")
DRIVER_ERRORS: tuple[type[Exception], ...] = (psycopg.Error, psycopg2.Error)
# A serialisation failure, a deadlock, or two first claims of one idempotency key: nothing was committed.
RERUN_SQLSTATES = frozenset({"40001", "40P01", "23505"})
RERUN_PAUSES_SECONDS = (0.2, 2.0)
POOLER_TRIALS = 3
COPIED_AT_ONCE = 500


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
    """One Postgres database: how to reach it, and where notifications can be had."""

    # Both hold the password.
    connect_args: Mapping[str, Any] = field(repr=False)
    listen_args: Mapping[str, Any] = field(repr=False)
    use_psycopg: bool = True

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
                return psycopg.connect(**args)
            return psycopg2.connect(**args)

    async def connect_async(self, args: Mapping[str, Any] | None = None) -> psycopg.AsyncConnection[Any]:
        with self.translated():
            return await psycopg.AsyncConnection.connect(**(self.connect_args if args is None else args))

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
        raise DatabaseError(f"{self.address} refused a statement: {said}") from error


class Session:
    """One synchronous connection, opened when first needed and opened anew when it was lost."""

    def __init__(self, database: Database) -> None:
        self.database = database
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
                        outcome = run(connection, make_script(), pipeline)
                        connection.commit()
                    return outcome
                except DRIVER_ERRORS as error:
                    _roll_back(connection)
                    is_lost = is_connection_lost(error) or connection.closed
                    if is_lost:
                        self.close()
                    if pause_seconds is None or not (is_lost or sqlstate_of(error) in RERUN_SQLSTATES):
                        raise
                    time.sleep(pause_seconds)
                except BaseException:
                    _roll_back(connection)
                    raise
        raise AssertionError("the last run returns or raises")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

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


async def run_async(connection: psycopg.AsyncConnection[Any], make_script: Callable[[], Script[T]]) -> T:
    """Run a script in one transaction on a connection the caller owns, in autocommit mode."""
    async with connection.transaction(), connection.cursor() as cursor:
        script = make_script()
        try:
            statement = next(script)
            while True:
                await cursor.execute(_query(statement), statement.params or None)
                statement = script.send(_as_rows(cursor, await cursor.fetchall() if cursor.description else []))
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome


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


async def listen_async(database: Database) -> psycopg.AsyncConnection[Any]:
    """A connection that hears ``task_done``, for the asynchronous side; the same rules as Listener."""
    connection = await database.connect_async(database.listen_args)
    try:
        with database.translated():
            await connection.set_autocommit(True)
            await _require_session_async(database, connection)
            await connection.execute("LISTEN task_done")
    except BaseException:
        await connection.close()
        raise
    return connection


async def _require_session_async(database: Database, connection: psycopg.AsyncConnection[Any]) -> None:
    backend = await _backend_pid_async(connection)
    if backend == connection.info.backend_pid:
        return
    for _ in range(POOLER_TRIALS):
        async with await psycopg.AsyncConnection.connect(**database.listen_args) as other:
            lent = await _backend_pid_async(other) == backend
            if lent or await _backend_pid_async(connection) != backend:
                raise ListenUnavailable(LISTEN_THROUGH_POOLER.format(address=database.address))


async def _backend_pid_async(connection: psycopg.AsyncConnection[Any]) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    pid: int = row[0] if row else 0
    return pid


LISTEN_THROUGH_POOLER = (
    "{address} is reached through a connection pooler in transaction mode, where notifications never arrive. Give the "
    'connection\'s extra a direct way with listen_host and listen_port, or set "listen": "poll" to wait by polling'
)


def sqlstate_of(error: Exception) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def is_connection_lost(error: Exception) -> bool:
    """No server, or it went away: class 08, a shutdown, idle for too long, or an operational error without a state."""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05", "25P03", "53300")
    return isinstance(error, psycopg.OperationalError | psycopg2.OperationalError | psycopg2.InterfaceError)


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
