"""The asynchronous client of a test, on the same tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from airflow_horsies.client.async_client import AsyncClient, T
from airflow_horsies.client.calls import canonical_ids
from airflow_horsies.client.client import Client
from airflow_horsies.client.hub import Waiter
from airflow_horsies.client.signals import DEFAULT_SENDER
from airflow_horsies.core.batch import BatchSpec, BatchTasks, ChunkCount, SubmittedBatch
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.log import LogCursor, Progress, TaskNews
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import (
    AirflowTry,
    OnClear,
    SentIds,
    Submission,
    SubmitResult,
    TaskInstanceKey,
    latest_task_ids,
)
from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState, TaskView
from airflow_horsies.testing.client import FakeClient
from airflow_horsies.testing.memory import Memory
from airflow_horsies.testing.workflow_clients import FakeAsyncWorkflows, endless


class FakeAsyncClient(FakeAsyncWorkflows, AsyncClient):
    """
    The asynchronous counterpart of FakeClient: the client of triggers in a test.

    .. code-block:: python

        import asyncio

        from airflow_horsies.hook import HorsiesHook
        from airflow_horsies.models import TaskSpec
        from airflow_horsies.testing import FakeHorsies


        async def send() -> None:
            client = await HorsiesHook().async_client()
            (task,) = await client.wait([await client.enqueue_task(TaskSpec(task_name="add"))])
            assert task.result.ok == 3


        with FakeHorsies() as horsies:
            horsies.returns("add", 3)
            asyncio.run(send())

    :param client: the client whose tables it uses.
    """

    def __init__(self, client: FakeClient) -> None:
        super().__init__(client.settings)
        self.client = client

    async def enqueue_task(self, spec: TaskSpec) -> str:
        return self.client.enqueue_task(spec)

    async def submit_tasks(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        return self.client.submit_tasks(specs, task_instance, tried)

    async def submit_batch(
        self,
        batch: BatchSpec,
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        *,
        on_clear: OnClear | str = OnClear.ALL,
    ) -> SubmittedBatch:
        return self.client.submit_batch(batch, task_instance, tried, on_clear=on_clear)

    async def in_thread(self, call: Callable[[Client], T]) -> T:
        return call(self.client)

    async def read_task(self, task_id: str) -> TaskView:
        return self.client.read_task(task_id)

    async def read_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        return self.client.read_tasks(task_ids)

    async def read_outlines(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        return self.client.read_outlines(task_ids)

    async def read_queues(self) -> list[QueueDepth]:
        return self.client.read_queues()

    async def read_catalog(
        self, *, kind: str | None = None, name: str | None = None, queue: str | None = None
    ) -> list[KnownTask]:
        return self.client.read_catalog(kind=kind, name=name, queue=queue)

    async def read_workers(self) -> list[WorkerState]:
        return self.client.read_workers()

    async def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return self.client.read_submissions(task_instance)

    async def read_latest_task_ids(self, task_instance: TaskInstanceKey) -> list[str]:
        return latest_task_ids(self.client.read_submissions(task_instance))

    async def read_ids_of_try(self, task_instance: TaskInstanceKey, *, try_number: int) -> SentIds:
        sent = self.client.read_submissions(task_instance)
        own = [item for item in sent if item.is_latest and item.try_number == try_number]
        return SentIds(max((item.life for item in own), default=None), latest_task_ids(own))

    async def has_later_submission(self, task_instance: TaskInstanceKey, *, life: int, try_number: int) -> bool:
        return self.client.ledger.has_later_submission(task_instance, life=life, try_number=try_number)

    async def read_item_places(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> Mapping[tuple[str, int], int]:
        return self.client.read_batch(task_instance, life=life, size=size).by_item()

    async def read_batch_tasks(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchTasks:
        return self.client.read_batch_tasks(task_instance, life=life, size=size)

    async def count_items(
        self, task_ids: Collection[str], among: Collection[str] | None = None
    ) -> dict[str, ChunkCount]:
        return self.client.count_items(task_ids, among)

    async def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        return self.client.read_news(seen)

    async def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        return self.client.cancel_task(task_id, states=states)

    async def signal(
        self,
        target: str,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        return self.client.signal(target, name, payload, dedup_key=dedup_key, sent_by=sent_by)

    async def signal_task_instance(
        self,
        task_instance: TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        return self.client.signal_task_instance(task_instance, name, payload, dedup_key=dedup_key, sent_by=sent_by)

    async def cancel_tasks(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        return self.client.cancel_tasks(task_ids)

    async def release_tasks(
        self, task_ids: Iterable[str], task_instance: TaskInstanceKey, *, life: int | None = None
    ) -> dict[str, CancelOutcome]:
        return self.client.release_tasks(task_ids, task_instance, life=life)

    async def wait(self, task_ids: Iterable[str], *, timeout_seconds: float | None = None) -> list[TaskView]:
        return self.client.wait(task_ids, timeout_seconds=timeout_seconds)

    @asynccontextmanager
    async def subscribe(
        self, task_ids: Collection[str], *, seen: Mapping[str, LogCursor] | None = None
    ) -> AsyncIterator[Waiter]:
        yield FakeWaiter(self.client.memory, canonical_ids(task_ids), seen)


class FakeWaiter(Waiter):
    """Reads its tasks itself whenever it is asked for news."""

    def __init__(self, memory: Memory, task_ids: Iterable[str], seen: Mapping[str, LogCursor] | None) -> None:
        super().__init__(task_ids, seen)
        self._memory = memory
        self._progress: dict[str, Progress | None] = {}

    async def news(self, *, until: datetime | None = None) -> None:
        tasks = {task_id: self._memory.look(task_id) for task_id in sorted(self.pending)}
        self._deliver_news()
        for task_id, task in tasks.items():
            if task is None or task.state.is_terminal:
                self.deliver(task_id, None if task is None else task.state)
        if self.pending and not self._news.is_set():
            if until is None:
                raise endless(self._memory.read_task(min(self.pending)))
            raise TimeoutError
        await super().news()

    def _deliver_news(self) -> None:
        news = self._memory.read_news(self.wants())
        self.add_news(
            {
                task_id: update
                for task_id, update in news.items()
                if update.lines or update.progress != self._progress.get(task_id)
            }
        )
        self._progress |= {task_id: update.progress for task_id, update in news.items()}
