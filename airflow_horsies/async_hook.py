"""The calls of HorsiesHook for an event loop: the same statements and rules as on the other side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from airflow_horsies.connected_hook import MIGRATION_LIMITS, ConnectedHook, LedgerBehind
from airflow_horsies.exceptions import HistoryPartitionMissing, InvalidTask, WaitTimeout
from airflow_horsies.hub import Waiter, hub_of
from airflow_horsies.ledger import cancelling, submissions
from airflow_horsies.models import (
    LIVE_STATES,
    CancelOutcome,
    LogCursor,
    QueueDepth,
    Submission,
    TaskInstanceKey,
    TaskState,
    TaskView,
    WorkerState,
    require_task_id,
)
from airflow_horsies.pool import pool_of
from airflow_horsies.wire import scripts
from airflow_horsies.wire.statement import Script


class AsyncHook(ConnectedHook):
    """Mixed into HorsiesHook; triggers call it."""

    async def get_task_async(self, task_id: str) -> TaskView:
        """As :meth:`get_task`, for triggers: ``task = await hook.get_task_async(task_id)``."""
        wanted = require_task_id(task_id)
        return await self._read_async(lambda wire: scripts.read_task(wire, wanted))

    async def get_tasks_async(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """As :meth:`get_tasks`, for triggers: ``tasks = await hook.get_tasks_async(ids)``."""
        wanted = canonical_ids(task_ids)
        return await self._read_async(lambda wire: scripts.read_tasks(wire, wanted))

    async def queues_async(self) -> list[QueueDepth]:
        """As :meth:`queues`, for triggers: ``queues = await hook.queues_async()``."""
        return await self._read_async(scripts.read_queues)

    async def workers_async(self) -> list[WorkerState]:
        """As :meth:`workers`, for triggers: ``workers = await hook.workers_async()``."""
        return await self._read_async(scripts.read_workers)

    async def submissions_of_async(self, task_instance: TaskInstanceKey) -> list[Submission]:
        """As :meth:`submissions_of`, for triggers: ``sent = await hook.submissions_of_async(instance)``."""
        database = await self._postgres_async()
        try:
            return await self._read_async(lambda _: self._submissions_of(task_instance))
        except LedgerBehind:
            await pool_of(database).run(self._make_ledger, limits=MIGRATION_LIMITS)
        return await self._read_async(lambda _: self._submissions_of(task_instance))

    async def cancel_async(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        """As :meth:`cancel`, for triggers: ``outcome = await hook.cancel_async(task_id)``."""
        wanted = require_task_id(task_id)
        return await self._write_async(lambda wire: cancelling.cancel_in_any_ledger(wire, wanted, states=states))

    async def cancel_many_async(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """As :meth:`cancel_many`, for triggers: ``outcomes = await hook.cancel_many_async(ids)``."""
        outcomes: dict[str, CancelOutcome] = {}
        for page in cancelling.pages(canonical_ids(task_ids)):
            outcomes |= await self._write_async(partial(cancelling.cancel_many_in_any_ledger, task_ids=page))
        return outcomes

    async def release_async(self, task_ids: Iterable[str], task_instance: TaskInstanceKey) -> dict[str, CancelOutcome]:
        """As :meth:`release`, for triggers: ``outcomes = await hook.release_async(ids, instance)``."""
        wanted = canonical_ids(task_ids)
        await self._postgres_async()
        release = partial(cancelling.release, namespace=self.namespace, task_instance=task_instance, task_ids=wanted)
        if len(wanted) <= cancelling.CANCELS_AT_ONCE:
            try:
                return await self._write_async(release)
            except HistoryPartitionMissing:
                return await self._write_async(partial(release, later=True))
        outcomes = await self._write_async(partial(release, later=True))
        with suppress(HistoryPartitionMissing):
            for page in cancelling.pages(wanted):
                outcomes |= await self._write_async(partial(cancelling.carry_out_requests, ids=page))
        return outcomes

    async def wait_async(self, task_ids: Iterable[str], *, timeout_seconds: float | None = None) -> list[TaskView]:
        """As :meth:`wait`, on an event loop: ``(task,) = await hook.wait_async([task_id])``."""
        wanted = canonical_ids(task_ids)
        async with self.subscribe(wanted) as waiter:
            try:
                async with asyncio.timeout(timeout_seconds):
                    while waiter.pending:
                        await waiter.news()
                        for task_id, state in waiter.ended.items():
                            if state is None:
                                raise scripts.task_not_found(task_id)
            except TimeoutError:
                raise wait_timeout(waiter.pending) from None
        found = await self.get_tasks_async(wanted)
        return [found[task_id] for task_id in wanted]

    @asynccontextmanager
    async def subscribe(
        self, task_ids: Collection[str], *, seen: Mapping[str, LogCursor] | None = None
    ) -> AsyncIterator[Waiter]:
        """
        Hear of the end of tasks on an event loop; all subscribers of a process share one listening connection.

        .. code-block:: python

            async with hook.subscribe([task_id]) as waiter:
                while waiter.pending:
                    await waiter.news()
                print(waiter.ended)

        :param seen: also follow what the tasks write, after the last line seen of each, which the caller keeps up to
            date in this mapping; :meth:`~airflow_horsies.hub.Waiter.take` has it after each news.
        """
        # One id that is none would fail the read that serves every waiter.
        wanted = canonical_ids(task_ids)
        database = await self._postgres_async()
        async with hub_of(database, listens=self._listens).subscribe(wanted, seen) as waiter:
            yield waiter

    def _submissions_of(self, task_instance: TaskInstanceKey) -> Script[list[Submission]]:
        # A hook that was given its namespace is for work under way, whose deployment may have moved since.
        base_url = self.base_url if self._given_namespace is None else ""
        read = partial(submissions.read_submissions, self.namespace, base_url, task_instance)
        return self._read_current(submissions.SINCE, read, [])


def canonical_ids(task_ids: Iterable[str]) -> list[str]:
    if isinstance(task_ids, str):
        raise InvalidTask("task_ids", "must be several ids, not one string; put it into a list")
    return list(dict.fromkeys(require_task_id(task_id) for task_id in task_ids))


def wait_timeout(waiting: Collection[str]) -> WaitTimeout:
    return WaitTimeout(
        f"{len(waiting)} task(s) had not ended in time, {min(waiting)} among them; they go on. "
        "'airflow horsies check' tells whether a live worker serves their queue",
        task_id=min(waiting),
    )
