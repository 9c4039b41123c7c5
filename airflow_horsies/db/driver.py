"""Runs scripts on a connection: synchronously for operators, asynchronously for triggers."""

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
COPIED_AT_ONCE = 50


def run(connection: Any, script: Script[T], pipeline: psycopg.Pipeline | None = None) -> T:
    """Run a script on a connection of the caller, in its current transaction.

    With a pipeline, it waits for a statement only when the script reads its rows, or the rows of a later statement.
    """
    try:
        statement = next(script)
        while True:
            cursor = connection.cursor()
            if isinstance(statement, CopyIn):
                _copy_in(cursor, statement)
            else:
                cursor.execute(statement.sql, statement.params or None)
            statement = script.send(_rows(cursor) if pipeline is None else LazyRows(cursor, pipeline))
    except StopIteration as stop:
        outcome: T = _fetched(stop.value)
        return outcome


class LazyRows(Sequence[Row]):
    """The rows of a statement in a pipeline, fetched when they are read."""

    def __init__(self, cursor: psycopg.Cursor[Any], pipeline: psycopg.Pipeline) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    @cached_property
    def _fetched(self) -> Rows:
        self._pipeline.sync()
        return _rows(self._cursor)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        return self._fetched[index]

    def __len__(self) -> int:
        return len(self._fetched)


def _fetched(outcome: Any) -> Any:
    """Rows can be fetched only while the pipeline is open."""
    return outcome[:] if isinstance(outcome, LazyRows) else outcome


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
    """Run a script in one transaction, within the limits, on a connection of the caller in autocommit mode."""
    with AnswerTimer(connection, limits.answer_seconds) as timer:
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.execute(_query(limits.statement), limits.statement.params)
            script = make_script()
            try:
                statement = next(script)
                while True:
                    timer.renew()
                    await cursor.execute(_query(statement), statement.params or None)
                    statement = script.send(_as_rows(cursor, await cursor.fetchall() if cursor.description else []))
            except StopIteration as stop:
                timer.renew()
                outcome: T = stop.value
                return outcome


class AnswerTimer:
    """Cuts a connection whose server does not answer in time, so that the wait for it fails.

    A timeout around the wait is not enough: leaving the transaction would send another request to the server.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._has_expired = False
        self._timer: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up)

    def _give_up(self) -> None:
        self._has_expired = True
        hang_up(self._connection)

    def __enter__(self) -> AnswerTimer:
        self.renew()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._has_expired and isinstance(error, psycopg.Error):
            raise psycopg.OperationalError(f"no answer within {self._seconds:.0f} s") from error


def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """Shut down the socket of a connection, so that a wait for an answer fails at once.

    The connection itself is not closed, because the event loop may still wait for its descriptor.
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
