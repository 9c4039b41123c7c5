"""A few connections per event loop and database, for all calls outside the hub.

Hundreds of triggers may start at once. They take turns on a few connections.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from airflow_horsies.db.backoff import jittered
from airflow_horsies.db.connection import Database
from airflow_horsies.db.driver import run_async
from airflow_horsies.db.errors import is_schema_mismatch, needs_new_connection, should_rerun
from airflow_horsies.db.limits import LIMITS, Limits
from airflow_horsies.db.per_loop import PerLoop
from airflow_horsies.db.session import RERUN_PAUSES_SECONDS
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import DatabaseBusy, HorsiesError, TaskNotFound
from airflow_horsies.wire.known import KnownSchema, WireScript

T = TypeVar("T")

MAX_CONNECTIONS = 3
# Shorter than the grace period of a trigger that is killed; the caller then tries again.
TURN_SECONDS = 20.0
# An idle connection is kept for a moment: the next call often comes soon.
IDLE_SECONDS = 5.0


class Pool:
    """Runs scripts on a few connections, which are opened on demand and closed when idle."""

    def __init__(self, database: Database, *, limits: Limits = LIMITS) -> None:
        self.database = database
        self._limits = limits
        self._known = KnownSchema()
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._users = 0
        # With the time when each became idle, the oldest first.
        self._idle: deque[tuple[float, psycopg.AsyncConnection[Any]]] = deque()
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._users and not self._idle

    async def run_on_wire(self, make_script: WireScript[T], *, limits: Limits | None = None) -> T:
        """Run a script with the known schema; once more if the schema has changed."""
        try:
            return await self.run(lambda: self._known.on_wire(make_script), limits=limits)
        except HorsiesError as error:
            if not (isinstance(error, TaskNotFound) or is_schema_mismatch(error)):
                raise
        self._known.invalidate()
        return await self.run(lambda: self._known.on_wire(make_script), limits=limits)

    async def run(self, make_script: Callable[[], Script[T]], *, limits: Limits | None = None) -> T:
        """Run a script in one transaction, and again from the start if it was interrupted, as Session does."""
        with self.database.translated():
            for pause_seconds in (*RERUN_PAUSES_SECONDS, None):
                async with self._connection() as connection:
                    try:
                        return await run_async(connection, make_script, limits or self._limits)
                    except psycopg.Error as error:
                        if needs_new_connection(error, connection):
                            await connection.close()
                            # The idle connections are most likely lost, too.
                            await self._close_idle()
                        if pause_seconds is None or not should_rerun(error, connection):
                            raise
                await asyncio.sleep(jittered(pause_seconds))
        raise AssertionError("The last run returns or raises.")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        self._users += 1
        try:
            await self._take_turn()
        except BaseException:
            self._users -= 1
            raise
        try:
            connection = self._idle.pop()[1] if self._idle else await self.database.connect_async()
            try:
                yield connection
            finally:
                await self._put_back(connection)
        finally:
            self._turns.release()
            self._users -= 1

    async def _take_turn(self) -> None:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise DatabaseBusy(
                f"All {MAX_CONNECTIONS} connections of this process to {self.database.address} have been in use for "
                f"{TURN_SECONDS:.0f} s. Try again later."
            ) from None

    async def _put_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if self._is_closed or connection.info.transaction_status is not TransactionStatus.IDLE:
            await connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._keeper is None or self._keeper.done():
            # In its own context: it works for all callers, not for the first one.
            self._keeper = loop.create_task(self._close_when_idle(), context=contextvars.Context())

    async def _close_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._idle:
                await asyncio.sleep(max(self._idle[0][0] + IDLE_SECONDS - loop.time(), 0))
                while self._idle and self._idle[0][0] + IDLE_SECONDS <= loop.time():
                    await self._idle.popleft()[1].close()
        except asyncio.CancelledError:
            # The event loop ends.
            self._is_closed = True
            await self._close_idle()
            raise

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.popleft()[1].close()


_pools: PerLoop[Pool] = PerLoop()


def pool_of(database: Database) -> Pool:
    """The pool of the running event loop for a database."""
    return _pools.get(database.key, database, lambda: Pool(database))
