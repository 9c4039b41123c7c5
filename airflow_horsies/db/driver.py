"""Scripts run on a connection: synchronously for operators, asynchronously for triggers."""

from __future__ import annotations

import asyncio
import io
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar, overload

import psycopg

from airflow_horsies.db.limits import LIMITS, Limits
from airflow_horsies.db.statement import CopyIn, Row, Rows, Script, Statement

T = TypeVar("T")
COPIED_AT_ONCE = 500


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


def open_pipeline(connection: Any) -> AbstractContextManager[psycopg.Pipeline | None]:
    # psycopg2 has none.
    if hasattr(connection, "pipeline") and psycopg.Pipeline.is_supported():
        pipeline: AbstractContextManager[psycopg.Pipeline] = connection.pipeline()
        return pipeline
    return nullcontext()


async def run_async(
    connection: psycopg.AsyncConnection[Any], make_script: Callable[[], Script[T]], limits: Limits = LIMITS
) -> T:
    """Run a script in one transaction on a connection the caller owns, in autocommit mode; within the limits."""
    with Patience(connection, limits.answer_seconds) as patience:
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


class Patience:
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

    def __enter__(self) -> Patience:
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


def _rows(cursor: Any) -> Rows:
    return _as_rows(cursor, cursor.fetchall() if cursor.description else [])


def _as_rows(cursor: Any, fetched: list[Any]) -> Rows:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in fetched]


def _query(statement: Statement) -> bytes:
    return statement.sql.encode()
