"""One listening connection per event loop and database, whatever the number of waiters for tasks and workflows.

The tasks of all notifications that arrive together are read in one batch. A read after a reconnect and a slow poll
cover lost notifications. The log lines and the progress of running tasks are read for all followers at once.

Every statement has a time limit. Transient errors (a lost connection, a lock, a time limit, exhausted resources) are
retried with pauses; only lasting errors reach the waiters.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from airflow_horsies.client.callback_waiting import CallbackBoard, Callbacks, CallbackWaiter
from airflow_horsies.client.waiting import FOLLOW_SECONDS, POLL_SECONDS
from airflow_horsies.client.workflow_waiting import States, WorkflowBoard, WorkflowWaiter
from airflow_horsies.core.log import LogCursor, TaskNews
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.db.connection import Database
from airflow_horsies.db.driver import hang_up, run_async
from airflow_horsies.db.errors import is_connection_lost, is_schema_mismatch
from airflow_horsies.db.limits import LIMITS, Limits
from airflow_horsies.db.listener import CALLBACK_DONE, TASK_DONE, WORKFLOW_DONE, listen_again, listen_async
from airflow_horsies.db.per_loop import PerLoop
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import (
    TRANSIENT_ERRORS,
    DatabaseBusy,
    DatabaseUnreachable,
    HorsiesError,
    ListenUnavailable,
    WireError,
)
from airflow_horsies.ledger import attempts
from airflow_horsies.ledger.cancelling import CANCELS_AT_ONCE, carry_out_requests
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.wire.decoding import decode_state
from airflow_horsies.wire.known import KnownSchema, WireScript, writing
from airflow_horsies.wire.reading import read_statuses
from airflow_horsies.wire.schema import Schema
from airflow_horsies.wire.statements import Wire

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 15.0
# Shorter, because a read that failed on a lock has already waited.
MAX_BUSY_SECONDS = 5.0
# How long an unsupported schema or a missing privilege must last before the waiters fail.
LASTING_SECONDS = 30.0
# Requested cancels are carried out a page at a time, so that reads continue in between.
MORE_CANCELS_SECONDS = 1.0
# A silent connection may be lost without an error.
LISTEN_CHECK_SECONDS = 15.0
# A hub without waiters is kept for a moment: the next waiter often comes soon.
LINGER_SECONDS = 5.0


class Waiter:
    """
    The tasks of one waiter; ``ended`` contains those that ended, with None for a task that does not exist.

    :param seen: the last line read of each task, updated by the caller; None if the waiter does not follow the tasks.
    """

    def __init__(self, task_ids: Iterable[str], seen: Mapping[str, LogCursor] | None = None) -> None:
        self.pending = set(task_ids)
        self.ended: dict[str, TaskState | None] = {}
        self._new_ended: dict[str, TaskState | None] = {}
        self.seen = seen
        self._unread_news: dict[str, TaskNews] = {}
        self._error: HorsiesError | None = None
        self._news = asyncio.Event()

    async def news(self, *, until: datetime | None = None) -> None:
        """Wait until more tasks have ended or written something; raise a lasting error of the hub.

        :param until: raise TimeoutError at this time.
        """
        if self.pending and self._error is None:
            seconds = None if until is None else max((until - datetime.now(UTC)).total_seconds(), 0)
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error

    def take(self) -> dict[str, TaskNews]:
        """What the tasks have written since the last call; nothing more is read until then."""
        news, self._unread_news = self._unread_news, {}
        return news

    def take_ended(self) -> dict[str, TaskState | None]:
        """The tasks that have ended since the last call."""
        ended, self._new_ended = self._new_ended, {}
        return ended

    def wants(self) -> dict[str, LogCursor]:
        """The tasks to follow, with the last line read of each."""
        if self.seen is None or self._unread_news:
            return {}
        return {task_id: self.seen.get(task_id, LogCursor()) for task_id in self.pending}

    def deliver(self, task_id: str, state: TaskState | None) -> None:
        if task_id in self.pending:
            self.pending.remove(task_id)
            self.ended[task_id] = self._new_ended[task_id] = state
            self._news.set()

    def add_news(self, news: Mapping[str, TaskNews]) -> None:
        if news:
            self._unread_news = dict(news)
            self._news.set()

    def fail(self, error: HorsiesError) -> None:
        self._error = error
        self._news.set()


class _Follower:
    """Reads log lines and progress on one connection, at intervals, if the tables exist."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.due = 0.0
        self._limits = limits
        self._has_tables = False

    async def look(self, connection: psycopg.AsyncConnection[Any], waiters: Collection[Waiter]) -> None:
        now = asyncio.get_running_loop().time()
        if now < self.due:
            return
        self.due = now + FOLLOW_SECONDS
        # Only these waiters get the news: one that subscribes during the read may have read fewer lines.
        wanted = {waiter: wants for waiter in waiters if (wants := waiter.wants())}
        if not wanted:
            return
        try:
            if not self._has_tables:
                self._has_tables = await run_async(connection, read_version, self._limits) >= attempts.SINCE
            if self._has_tables:
                read_news = partial(attempts.read_news, _least_seen(wanted.values()))
                news = await run_async(connection, read_news, self._limits)
                for waiter, wants in wanted.items():
                    waiter.add_news({task_id: news[task_id] for task_id in wants.keys() & news.keys()})
        except psycopg.Error as error:
            if is_connection_lost(error) or connection.closed:
                raise
            self._has_tables = False
            log.warning("Cannot read the log lines and the progress of tasks: %s", error)
        if not self._has_tables:
            self.due = now + POLL_SECONDS


def _least_seen(wanted: Iterable[Mapping[str, LogCursor]]) -> dict[str, LogCursor]:
    least: dict[str, LogCursor] = {}
    for wants in wanted:
        for task_id, cursor in wants.items():
            least[task_id] = min(cursor, least.get(task_id, cursor))
    return least


class _Idle(Exception):
    """There are no waiters left."""


class Hub:
    """Listens and reads for every waiter of one event loop on one database."""

    def __init__(
        self, database: Database, *, listens: bool, poll_seconds: float = POLL_SECONDS, limits: Limits = LIMITS
    ) -> None:
        self.database = database
        self._listens = listens
        self._poll_seconds = poll_seconds
        self._limits = limits
        self._known = KnownSchema()
        self._waiters: defaultdict[str, set[Waiter]] = defaultdict(set)
        self._followers: set[Waiter] = set()
        self._workflows = WorkflowBoard()
        self._callbacks = CallbackBoard()
        self._unread: set[str] = set()
        self._unknown_since: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._reconnecting = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        self._busy = Backoff(FIRST_RETRY_SECONDS, MAX_BUSY_SECONDS)
        self._failing_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._has_waiters and (self._task is None or self._task.done())

    @property
    def _has_waiters(self) -> bool:
        return bool(self._waiters or self._workflows.waiters or self._callbacks.waiters)

    @asynccontextmanager
    async def subscribe(
        self, task_ids: Collection[str], seen: Mapping[str, LogCursor] | None = None
    ) -> AsyncIterator[Waiter]:
        """A waiter for the end of these tasks, including those that have already ended, and for what they write."""
        waiter = Waiter(task_ids, seen)
        for task_id in task_ids:
            self._waiters[task_id].add(waiter)
        if seen is not None:
            self._followers.add(waiter)
        self._read_again(task_ids)
        self._start()
        try:
            yield waiter
        finally:
            self._followers.discard(waiter)
            for task_id in task_ids:
                self._waiters[task_id].discard(waiter)
                if not self._waiters[task_id]:
                    del self._waiters[task_id]
                    self._unknown_since.pop(task_id, None)
            self._wake.set()

    @asynccontextmanager
    async def subscribe_workflows(self, workflow_ids: Collection[str]) -> AsyncIterator[WorkflowWaiter]:
        """A waiter for the end and the pauses of these workflows, including what has already happened."""
        waiter = WorkflowWaiter(workflow_ids)
        self._workflows.add(waiter)
        self._wake.set()
        self._start()
        try:
            yield waiter
        finally:
            self._workflows.remove(waiter, workflow_ids)
            self._wake.set()

    @asynccontextmanager
    async def subscribe_callback(self, callback_id: str) -> AsyncIterator[CallbackWaiter]:
        """A waiter for the outcome of a callback, including one that it has already."""
        waiter = CallbackWaiter(callback_id)
        self._callbacks.add(waiter)
        self._wake.set()
        self._start()
        try:
            yield waiter
        finally:
            self._callbacks.remove(waiter)
            self._wake.set()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            # In its own context: it logs for all waiters, not for the first one.
            self._task = asyncio.get_running_loop().create_task(self._serve(), context=contextvars.Context())

    async def _serve(self) -> None:
        while True:
            try:
                await self._serve_while_connected()
            except _Idle:
                # A waiter may have subscribed while the connections were closing.
                if not self._has_waiters:
                    return
                continue
            except TRANSIENT_ERRORS as error:
                if not self._has_waiters:
                    return
                await _pause(self._reconnecting, error)
            except HorsiesError as error:
                if not self._has_waiters or isinstance(error, ListenUnavailable) or self._has_lasted():
                    self._fail_all(error)
                    return
                await _pause(self._reconnecting, error)
            except Exception as error:
                log.exception("The hub of %s failed.", self.database.address)
                self._fail_all(HorsiesError(f"Waiting failed: {type(error).__name__}. See the log of this process."))
                return

    def _has_lasted(self) -> bool:
        """Whether reads have failed for longer than an upgrade or a restore takes."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since >= LASTING_SECONDS

    async def _serve_while_connected(self) -> None:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as opened:
            listener: psycopg.AsyncConnection[Any] | None = None
            if self._listens:
                listener = await listen_async(self.database, self._limits)
                opened.push_async_callback(listener.close)
            reader = await self.database.connect_async()
            opened.push_async_callback(reader.close)
            # Reading everything finds the tasks that ended before the listener was open.
            self._read_again(self._waiters)
            self._workflows.read_again()
            self._callbacks.read_again()
            parts = [loop.create_task(self._read(reader))]
            if listener is not None:
                parts.append(loop.create_task(self._listen(listener)))
            try:
                ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                for part in ended:
                    part.result()
            finally:
                if reader.info.transaction_status is TransactionStatus.ACTIVE:
                    # Otherwise the driver asks the server to cancel the statement, and waits for the answer.
                    hang_up(reader)
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        with self.database.translated():
            while True:
                async for message in connection.notifies(timeout=LISTEN_CHECK_SECONDS):
                    if message.channel == TASK_DONE and message.payload in self._waiters:
                        self._read_again((message.payload,))
                    elif (message.channel == WORKFLOW_DONE and self._workflows.hear(message.payload)) or (
                        message.channel == CALLBACK_DONE and self._callbacks.hear(message.payload)
                    ):
                        self._wake.set()
                await listen_again(connection, self._limits)

    async def _read(self, connection: psycopg.AsyncConnection[Any]) -> None:
        loop = asyncio.get_running_loop()
        follower = _Follower(self._limits)
        next_poll = next_cancels = loop.time() + self._poll_seconds
        while True:
            self._wake.clear()
            if loop.time() >= next_poll:
                self._unread.update(self._waiters)
                self._workflows.read_again()
                self._callbacks.read_again()
                next_poll = loop.time() + self._poll_seconds
            if loop.time() >= next_cancels:
                has_more = await self._carry_out_requests(connection)
                next_cancels = loop.time() + (MORE_CANCELS_SECONDS if has_more else self._poll_seconds)
            try:
                with self.database.translated():
                    await self._read_states(connection)
                    await self._workflows.look(partial(self._run, connection))
                    await self._callbacks.look(partial(self._run_ours, connection))
                    await follower.look(connection, self._followers)
            except DatabaseBusy as busy:
                await _pause(self._busy, busy)
                continue
            self._reconnecting.reset()
            self._busy.reset()
            self._failing_since = None
            others = [follower.due] if self._followers else []
            if self._workflows.due is not None:
                others.append(self._workflows.due)
            if self._callbacks.due is not None:
                others.append(self._callbacks.due)
            due = min(next_poll, next_cancels, *others)
            pause = max(due - loop.time(), 0) if self._has_waiters else LINGER_SECONDS
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                if not self._has_waiters:
                    raise _Idle from None

    async def _run(self, connection: psycopg.AsyncConnection[Any], make_script: WireScript[States]) -> States:
        """Run a script with the known schema; once more if the schema has changed."""
        with self.database.translated():
            try:
                return await run_async(connection, lambda: self._known.on_wire(make_script), self._limits)
            except psycopg.Error as error:
                if not is_schema_mismatch(error):
                    raise
            self._known.invalidate()
            return await run_async(connection, lambda: self._known.on_wire(make_script), self._limits)

    async def _run_ours(
        self, connection: psycopg.AsyncConnection[Any], make_script: Callable[[], Script[Callbacks]]
    ) -> Callbacks:
        with self.database.translated():
            return await run_async(connection, make_script, self._limits)

    async def _carry_out_requests(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Carry out a page of requested cancels, for which no waiter waits. True if there may be more."""
        try:
            with self.database.translated():
                carried_out = await run_async(
                    connection, lambda: self._known.on_wire(writing(carry_out_requests)), self._limits
                )
                return len(carried_out) == CANCELS_AT_ONCE
        except DatabaseUnreachable:
            raise
        except HorsiesError as error:
            log.warning("Cannot carry out requested cancels yet: %s", error)
            return False

    async def _read_states(self, connection: psycopg.AsyncConnection[Any]) -> None:
        unread, self._unread = self._unread & self._waiters.keys(), set()
        if not unread:
            return
        try:
            self._deliver(self._decode(await self._find_statuses(connection, unread)))
        except BaseException:
            self._unread |= unread
            raise

    def _decode(self, statuses: Mapping[str, str | None]) -> dict[str, TaskState | None]:
        """The known states. A state that stays unknown to this release fails the waiters of its task."""
        now = asyncio.get_running_loop().time()
        states: dict[str, TaskState | None] = {}
        for task_id, status in statuses.items():
            try:
                states[task_id] = None if status is None else decode_state(task_id, status)
            except WireError as error:
                if now - self._unknown_since.setdefault(task_id, now) >= LASTING_SECONDS:
                    self._fail(error, self._waiters.get(task_id, ()))
                    self._unknown_since.pop(task_id)
            else:
                self._unknown_since.pop(task_id, None)
        return states

    async def _find_statuses(
        self, connection: psycopg.AsyncConnection[Any], task_ids: Collection[str]
    ) -> Mapping[str, str | None]:
        """The status of each task; None for one that does not exist."""
        try:
            schema, statuses = await self._ask(connection, task_ids)
            absent = task_ids - statuses.keys()
            if not absent:
                return statuses
        except psycopg.Error as error:
            if not is_schema_mismatch(error):
                raise
            absent, statuses = set(task_ids), {}
        # An upgrade of horsies may have moved the tasks.
        self._known.invalidate()
        schema, found = await self._ask(connection, absent)
        if schema.cutover_is_pending:
            return {**statuses, **found}
        return {**statuses, **dict.fromkeys(absent), **found}

    async def _ask(
        self, connection: psycopg.AsyncConnection[Any], task_ids: Collection[str]
    ) -> tuple[Schema, dict[str, str]]:
        def read(wire: Wire) -> Script[tuple[Schema, dict[str, str]]]:
            return wire.schema, (yield from read_statuses(wire, task_ids))

        return await run_async(connection, lambda: self._known.on_wire(read), self._limits)

    def _read_again(self, task_ids: Iterable[str]) -> None:
        self._unread.update(task_ids)
        self._wake.set()

    def _deliver(self, states: Mapping[str, TaskState | None]) -> None:
        for task_id, state in states.items():
            if state is None or state.is_terminal:
                for waiter in self._waiters.get(task_id, ()):
                    waiter.deliver(task_id, state)

    def _fail_all(self, error: HorsiesError) -> None:
        self._failing_since = None
        self._fail(error, {waiter for waiters in self._waiters.values() for waiter in waiters})
        self._workflows.fail_all(error)
        self._callbacks.fail_all(error)

    @staticmethod
    def _fail(error: HorsiesError, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.fail(error)


async def _pause(backoff: Backoff, error: HorsiesError) -> None:
    seconds = backoff.next_pause()
    log.warning("Cannot read the states of tasks. Trying again in %.1f s: %s", seconds, error)
    await asyncio.sleep(seconds)


_hubs: PerLoop[Hub] = PerLoop()


def hub_of(database: Database, *, listens: bool) -> Hub:
    """The hub of the running event loop for a database."""
    return _hubs.get((listens, database.key), database, lambda: Hub(database, listens=listens))
