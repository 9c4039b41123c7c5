"""The client of one horsies database for an event loop, with the same statements and rules as Client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from airflow_horsies.client import accepting, batches, calls, signals
from airflow_horsies.client.callback_waiting import CallbackWaiter
from airflow_horsies.client.calls import Scope, canonical_ids
from airflow_horsies.client.client import Client
from airflow_horsies.client.hub import Waiter, hub_of
from airflow_horsies.client.pool import pool_of
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Step, Transaction
from airflow_horsies.client.threads import Threads, ThreadsBlocked
from airflow_horsies.client.waiting import wait_timeout
from airflow_horsies.client.watched import WatchedSession
from airflow_horsies.client.workflow_clients import AsyncWorkflowClient
from airflow_horsies.core.batch import BatchSpec, BatchTasks, ChunkCount, SubmittedBatch
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.log import LogCursor, TaskNews
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, OnClear, SentIds, Submission, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState, TaskView
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import DatabaseBusy
from airflow_horsies.ledger import attempts, cancelling
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.wire import cluster, reading
from airflow_horsies.wire.known import WireScript, writing

T = TypeVar("T")

# To encode or decode more tasks takes too long on an event loop that others share.
MAX_TASKS_ON_LOOP = 200
# As many items are found within some ten milliseconds.
MAX_ITEMS_ON_LOOP = 5_000
# By the address of the database: one that does not answer blocks no calls on another.
_threads: dict[str, Threads] = {}


def threads_of(database: Database) -> Threads:
    """The threads for large batches of a database."""
    address = database.address
    if address not in _threads:
        _threads[address] = Threads("horsies-client", purpose="large batches", blocked_by=address)
    return _threads[address]


class AsyncClient(AsyncWorkflowClient):
    """The client of triggers. All clients of an event loop share a few connections."""

    def __init__(self, settings: ClientSettings) -> None:
        self.scope = Scope(settings)

    @property
    def settings(self) -> ClientSettings:
        return self.scope.settings

    async def enqueue_task(self, spec: TaskSpec) -> str:
        return await self.drive(calls.enqueue_task(self.scope, spec))

    async def submit_tasks(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        if len(specs) > MAX_TASKS_ON_LOOP:
            return await self.in_thread(lambda client: client.submit_tasks(specs, task_instance, tried))
        return await self.drive(calls.submit_tasks(self.scope, specs, task_instance, tried))

    async def submit_batch(
        self,
        batch: BatchSpec,
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        *,
        on_clear: OnClear | str = OnClear.ALL,
    ) -> SubmittedBatch:
        if len(batch.items) > MAX_TASKS_ON_LOOP:
            return await self.in_thread(
                lambda client: client.submit_batch(batch, task_instance, tried, on_clear=on_clear)
            )
        return await self.drive(batches.submit_batch(self.scope, batch, task_instance, tried, on_clear=on_clear))

    async def read_task(self, task_id: str) -> TaskView:
        return await self.read(partial(reading.read_task, task_id=require_task_id(task_id)))

    async def read_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        wanted = canonical_ids(task_ids)
        if len(wanted) > MAX_TASKS_ON_LOOP:
            return await self.in_thread(lambda client: client.read_tasks(wanted))
        return await self.read(partial(reading.read_tasks, ids=wanted))

    async def read_outlines(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """As read_tasks, without arguments and results, which may be very large."""
        wanted = canonical_ids(task_ids)
        if len(wanted) > MAX_TASKS_ON_LOOP:
            return await self.in_thread(lambda client: client.read_outlines(wanted))
        return await self.read(partial(reading.read_tasks, ids=wanted, whole=False))

    async def read_queues(self) -> list[QueueDepth]:
        return await self.read(cluster.read_queues)

    async def read_catalog(
        self, *, kind: str | None = None, name: str | None = None, queue: str | None = None
    ) -> list[KnownTask]:
        return await self.drive(accepting.read_catalog(kind=kind, name=name, queue=queue))

    async def read_workers(self) -> list[WorkerState]:
        return await self.read(cluster.read_workers)

    async def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return await self.drive(calls.read_submissions(self.scope, task_instance))

    async def read_latest_task_ids(self, task_instance: TaskInstanceKey) -> list[str]:
        """The tasks of the last submission, which may be many."""
        return await self.drive(calls.read_latest_task_ids(self.scope, task_instance))

    async def read_ids_of_try(self, task_instance: TaskInstanceKey, *, try_number: int) -> SentIds:
        """The tasks that a try has submitted, which may be many."""
        return await self.drive(calls.read_ids_of_try(self.scope, task_instance, try_number=try_number))

    async def has_later_submission(self, task_instance: TaskInstanceKey, *, life: int, try_number: int) -> bool:
        return await self.drive(calls.has_later_submission(self.scope, task_instance, life=life, try_number=try_number))

    async def read_item_places(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The places of the items of a batch, by task and number."""
        if size is not None and size > MAX_ITEMS_ON_LOOP:
            return await self.in_thread(lambda client: client.read_batch(task_instance, life=life, size=size).by_item())
        return (await self.drive(batches.read_batch(self.scope, task_instance, life=life, size=size))).by_item()

    async def read_batch_tasks(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchTasks:
        if size is not None and size > MAX_ITEMS_ON_LOOP:
            return await self.in_thread(lambda client: client.read_batch_tasks(task_instance, life=life, size=size))
        return await self.drive(batches.read_batch_tasks(self.scope, task_instance, life=life, size=size))

    async def count_items(
        self, task_ids: Collection[str], among: Collection[str] | None = None
    ) -> dict[str, ChunkCount]:
        return await self.drive(batches.count_items(task_ids, among)) if task_ids else {}

    async def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        nothing: dict[str, TaskNews] = {}
        read = partial(ledger_schema.read_since, attempts.SINCE)
        return await pool_of(self.settings.database).run(lambda: read(attempts.read_news(seen), nothing))

    async def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        cancel = partial(cancelling.cancel_task_in_any_ledger, task_id=require_task_id(task_id), states=states)
        return await self.read(writing(cancel))

    async def cancel_tasks(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        return await self.drive(calls.cancel_tasks(task_ids))

    async def release_tasks(
        self, task_ids: Iterable[str], task_instance: TaskInstanceKey, *, life: int | None = None
    ) -> dict[str, CancelOutcome]:
        wanted = list(task_ids)
        if len(wanted) <= MAX_TASKS_ON_LOOP:
            return await self.drive(calls.release_tasks(self.scope, wanted, task_instance, life=life))

        def request(client: Client) -> dict[str, CancelOutcome]:
            return client.drive(
                calls.request_release(client.scope, calls.canonical_ids(wanted), task_instance, life=life)
            )

        # A page at a time does not block the event loop, and takes too long for one of the few threads.
        return await self.drive(calls.carry_out_releases(await self.in_thread(request)))

    async def signal(
        self,
        target: str,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = signals.DEFAULT_SENDER,
    ) -> SentSignal:
        """Send a signal to a task or to a workflow."""
        return await self.drive(
            signals.send_signal(self.scope, target, name, payload, dedup_key=dedup_key, sent_by=sent_by)
        )

    async def signal_task_instance(
        self,
        task_instance: TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = signals.DEFAULT_SENDER,
    ) -> SentSignal:
        """Send a signal to what a task instance submitted last."""
        return await self.drive(
            signals.send_signal_to_task_instance(
                self.scope, task_instance, name, payload, dedup_key=dedup_key, sent_by=sent_by
            )
        )

    async def wait(self, task_ids: Iterable[str], *, timeout_seconds: float | None = None) -> list[TaskView]:
        wanted = canonical_ids(task_ids)
        async with self.subscribe(wanted) as waiter:
            try:
                async with asyncio.timeout(timeout_seconds):
                    while waiter.pending:
                        await waiter.news()
                        for task_id, state in waiter.ended.items():
                            if state is None:
                                raise reading.task_not_found(task_id)
            except TimeoutError:
                raise wait_timeout(waiter.pending) from None
        found = await self.read_tasks(wanted)
        return [found[task_id] for task_id in wanted]

    @asynccontextmanager
    async def subscribe(
        self, task_ids: Collection[str], *, seen: Mapping[str, LogCursor] | None = None
    ) -> AsyncIterator[Waiter]:
        # An invalid id would fail the read for all waiters.
        wanted = canonical_ids(task_ids)
        hub = hub_of(self.settings.database, listens=self.settings.listens)
        async with hub.subscribe(wanted, seen) as waiter:
            yield waiter

    @asynccontextmanager
    async def subscribe_callback(self, callback_id: str) -> AsyncIterator[CallbackWaiter]:
        hub = hub_of(self.settings.database, listens=self.settings.listens)
        async with hub.subscribe_callback(callback_id) as waiter:
            yield waiter

    async def read(self, make_script: WireScript[T]) -> T:
        return await pool_of(self.settings.database).run_on_wire(make_script)

    async def in_thread(self, call: Callable[[Client], T]) -> T:
        """For much data: the same call on a connection of its own, while the event loop goes on."""

        def run() -> T:
            session = WatchedSession(self.settings.database)
            with Client(self.settings, session=session, migrate_seconds=0) as client:
                return call(client)

        try:
            return await threads_of(self.settings.database).run(run)
        except ThreadsBlocked as blocked:
            raise DatabaseBusy(f"The horsies database keeps other calls waiting: {blocked}") from None

    async def drive(self, call: Call[T]) -> T:
        try:
            step = next(call)
            while True:
                try:
                    outcome = await self._take(step)
                except Exception as error:
                    step = call.throw(error)
                else:
                    step = call.send(outcome)
        except StopIteration as stop:
            value: T = stop.value
            return value

    async def _take(self, step: Step) -> Any:
        match step:
            case Transaction():
                return await self.read(step.make_script)
            case PlainTransaction():
                return await pool_of(self.settings.database).run(step.make_script, limits=step.limits)
            case Pause():
                return await asyncio.sleep(step.seconds)
