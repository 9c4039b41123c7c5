"""The client of a test: the methods of the real one, on tables in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from airflow_horsies.client import batches, calls
from airflow_horsies.client.calls import canonical_ids
from airflow_horsies.client.client import Client
from airflow_horsies.client.rules import Submitter, UnknownRunKey
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.signals import DEFAULT_SENDER, Parking, require_one, require_target
from airflow_horsies.client.waiting import POLL_SECONDS, wait_timeout
from airflow_horsies.core.batch import (
    BatchPlaces,
    BatchSpec,
    BatchTasks,
    ChunkCount,
    ItemView,
    SubmittedBatch,
    choose_chunk_size,
    in_pages,
    item_of_task,
    locate_items,
)
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.cluster import QueueDepth, RetentionClass, WorkerState
from airflow_horsies.core.log import READ_LINES, LogCursor, LogLine, Progress, TaskNews
from airflow_horsies.core.paging import PageCursor, TaskPage, require_page_size
from airflow_horsies.core.signals import SentSignal, encode_payload, require_signal_name
from airflow_horsies.core.spec import DEFAULT_QUEUE, TaskSpec
from airflow_horsies.core.submission import (
    AirflowTry,
    OnClear,
    Submission,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    latest_task_ids,
    require_on_clear,
)
from airflow_horsies.core.task import LIVE_STATES, AttemptRecord, CancelOutcome, TaskState, TaskView, require_states
from airflow_horsies.core.validation import require_int, require_task_id
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.testing.ledger import FakeLedger
from airflow_horsies.testing.memory import Memory
from airflow_horsies.testing.outcomes import WORKER_ID
from airflow_horsies.testing.plan import NewTask
from airflow_horsies.testing.workflow_clients import FakeWorkflows, endless

NAMESPACE = "testing"


class NoDatabase(Database):
    """Takes the place of a database. An attempt to connect raises an error."""

    __slots__ = ()

    def connect(self, args: Mapping[str, Any] | None = None) -> NoReturn:
        raise HorsiesError(
            "FakeHorsies has no database and cannot run SQL. Use the methods of HorsiesHook that send, read, wait for "
            "and cancel tasks, or test this code on a real database."
        )

    async def connect_async(self, args: Mapping[str, Any] | None = None) -> NoReturn:
        self.connect(args)


def make_settings(name: str = "FakeHorsies", *, namespace: str | None = None) -> ClientSettings:
    """The settings of a client without a database."""
    return ClientSettings(
        database=NoDatabase(connect_args={}, listen_args={}), name=name, given_namespace=namespace or NAMESPACE
    )


class FakeClient(FakeWorkflows, Client):
    """
    The client behind :class:`~airflow_horsies.hook.HorsiesHook` in a test. It has the methods of the real one. Those
    that run SQL raise an error. Nothing sleeps: a task has ended as soon as it is read, and a wait for a task that
    never ends times out at once. Only a wait with ``timeout_seconds=0`` finds that a task that nobody has read yet has
    not ended.

    .. code-block:: python

        from airflow_horsies.hook import HorsiesHook
        from airflow_horsies.models import TaskSpec
        from airflow_horsies.testing import FakeHorsies

        with FakeHorsies() as horsies:
            horsies.returns("add", 3)
            client = HorsiesHook().client
            (task,) = client.wait([client.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))])
            assert task.result.ok == 3

    :param settings: the name and the namespace of the client.
    :param memory: the tables, which the clients of a connection share.
    :param ledger: the submissions, which they share, too.
    """

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        memory: Memory | None = None,
        ledger: FakeLedger | None = None,
    ) -> None:
        super().__init__(settings or make_settings())
        # Encoding a task does not have to read them.
        self.scope.retention_classes = []
        self.memory = memory or Memory()
        self.ledger = ledger or FakeLedger(self.memory)

    # -- sending -----------------------------------------------------------------------------------------------------

    def enqueue_task(self, spec: TaskSpec) -> str:
        (task,) = self._new_tasks([spec], numbered=False)
        return self.memory.enqueue_task(task)

    def enqueue_tasks(self, specs: Iterable[TaskSpec]) -> list[str]:
        return self.memory.enqueue_tasks(self._new_tasks(list(specs)))

    def submit_tasks(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        return self._submit(self._new_tasks(list(specs)), task_instance, tried)

    def submit_batch(
        self,
        batch: BatchSpec,
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        *,
        on_clear: OnClear | str = OnClear.ALL,
    ) -> SubmittedBatch:
        chosen = require_on_clear(on_clear)
        tasks = self._new_items(batch)
        rules = {"uses_items": True, "on_clear": chosen, "max_failures": batch.max_failures}
        results = self._submit(tasks, task_instance, tried, **rules)
        if batch.chunk_size is not None:
            self._join([result.task_id for result in results if result.outcome is SubmitOutcome.SENT], batch)
        chunk_of = self.memory.chunk_of
        ids = [chunk_of.get(result.task_id, (result.task_id, 0))[0] for result in results]
        return SubmittedBatch(
            life=max((result.life for result in results), default=0),
            size=len(results),
            task_ids=tuple(dict.fromkeys(ids)),
            outcomes=dict(Counter(result.outcome for result in results)),
            is_chunked=any(result.task_id in chunk_of for result in results),
        )

    def enqueue_items(self, batch: BatchSpec) -> list[str]:
        return self._join(self.memory.enqueue_tasks(self._new_items(batch)), batch)

    def _new_items(self, batch: BatchSpec) -> list[NewTask]:
        if batch.chunk_size is not None:
            # The checks of the real client.
            self.drive(batches.encode_items(self.scope, replace(batch, chunk_size=1)))
        return self._new_tasks([replace(batch.task, kwargs=kwargs) for kwargs in batch.items])

    def _join(self, item_ids: Sequence[str], batch: BatchSpec) -> list[str]:
        size = batch.chunk_size if isinstance(batch.chunk_size, int) else choose_chunk_size(len(item_ids), None, 0)
        pages = in_pages(len(item_ids), size)
        return [self.memory.join([item_ids[number] for number in page]) for page in pages]

    def _submit(
        self,
        tasks: Sequence[NewTask],
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        **rules: Any,
    ) -> list[SubmitResult]:
        submitter = Submitter(
            namespace=self.namespace, base_url=self.settings.base_url, task_instance=task_instance, tried=tried
        )
        while True:
            try:
                return self.ledger.submit_tasks(tasks, submitter, **rules)
            except UnknownRunKey as unknown:
                submitter = replace(submitter, tried=submitter.tried.ask_about(unknown.key))

    def _new_tasks(self, specs: Sequence[TaskSpec], *, numbered: bool = True) -> list[NewTask]:
        encoded = self.drive(calls.encode_tasks(self.scope, specs, numbered=numbered))
        return [
            NewTask(spec=spec, kwargs=json.loads(task.kwargs or "{}"), encoded=task)
            for spec, task in zip(specs, encoded, strict=True)
        ]

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_task(self, task_id: str) -> TaskView:
        return self.memory.read_task(require_task_id(task_id))

    def read_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        found = {task_id: self.memory.look(task_id) for task_id in canonical_ids(task_ids)}
        known = {task_id: task for task_id, task in found.items() if task is not None}
        return {task_id: task for task_id, task in known.items() if not self.memory.is_workflow(task_id)}

    def read_outlines(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        # Also those of the first nodes of workflows, for which the workflows stand.
        found = {task_id: self.memory.look(task_id) for task_id in canonical_ids(task_ids)}
        return {task_id: task for task_id, task in found.items() if task is not None}

    def read_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        return {task_id: task.state for task_id, task in self.read_tasks(task_ids).items()}

    def list_tasks(
        self,
        *,
        states: Collection[TaskState] | None = None,
        queue: str | None = None,
        task_name: str | None = None,
        error_code: str | None = None,
        before: PageCursor | None = None,
        limit: int = 50,
    ) -> TaskPage:
        require_page_size(limit)
        wanted = None if states is None else require_states(states)
        found = sorted(
            (
                task
                for task in self.read_tasks(list(self.memory.tasks)).values()
                if task.id not in self.memory.chunk_of
                and (wanted is None or task.state in wanted)
                and queue in (None, task.queue)
                and task_name in (None, task.task_name)
                and error_code in (None, task.error_code)
                and (before is None or (task.enqueued_at, task.id) < (before.at, before.task_id))
            ),
            key=lambda task: (task.enqueued_at, task.id),
            reverse=True,
        )
        last = found[:limit][-1] if len(found) > limit else None
        return TaskPage(
            tasks=tuple(found[:limit]),
            next=None if last is None else PageCursor(at=last.enqueued_at, task_id=last.id),
        )

    def read_queues(self) -> list[QueueDepth]:
        return self.memory.read_queues()

    def read_catalog(
        self, *, kind: str | None = None, name: str | None = None, queue: str | None = None
    ) -> list[KnownTask]:
        """Nothing: a test may send any task."""
        return []

    def read_workers(self) -> list[WorkerState]:
        """One live worker."""
        served = tuple(queue.queue for queue in self.memory.queues.values() if queue.served_by)
        now = datetime.now(UTC)
        worker = WorkerState(
            id=WORKER_ID,
            hostname="localhost",
            pid=1,
            queues=served or (DEFAULT_QUEUE,),
            processes=1,
            tasks_running=0,
            tasks_claimed=0,
            started_at=now,
            seen_at=now,
            alive=True,
        )
        return [worker]

    def read_retention_classes(self) -> list[RetentionClass]:
        return []

    # -- submissions, and reports of workers ---------------------------------------------------------------------------

    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return self.ledger.read_submissions(task_instance)

    def read_submissions_of_task(self, task_id: str) -> list[Submission]:
        wanted = require_task_id(task_id)
        return [item for item in self.ledger.read_all_submissions() if item.horsies_task_id == wanted]

    def read_submissions_of_run(self, dag_id: str, run_id: str, *, limit: int = 1_000) -> list[Submission]:
        found = [
            item
            for item in self.ledger.read_all_submissions()
            if item.is_latest and (item.task_instance.dag_id, item.task_instance.run_id) == (dag_id, run_id)
        ]
        found.sort(key=lambda item: (item.task_instance.task_id, item.task_instance.map_index, item.position))
        return found[:limit]

    def read_batch(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchPlaces:
        return locate_items(self.ledger.locate(task_instance), life=life, size=size)

    def read_batch_tasks(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchTasks:
        places = self.read_batch(task_instance, life=life, size=size)
        return BatchTasks(task_ids=tuple(places.task_ids), chunk_ids=frozenset(places.chunk_ids()))

    def count_items(self, task_ids: Collection[str], among: Collection[str] | None = None) -> dict[str, ChunkCount]:
        wanted = {item.horsies_task_id for item in self.ledger.read_all_items() if item.is_latest}
        counts = {}
        for task_id in task_ids:
            items = self.memory.chunks.get(task_id)
            if items is not None:
                # Without a task instance, all items are requested.
                states = [self.memory.tasks[item].state for item in items if item in wanted or not wanted & {*items}]
                if among is not None:
                    states += [TaskState.FAILED] * self.ledger.count_replaced(items, among)
                completed = states.count(TaskState.COMPLETED)
                counts[task_id] = ChunkCount(
                    len(states), completed, sum(state.is_terminal for state in states) - completed
                )
        return counts

    def read_items_of(
        self, refs: Sequence[tuple[str, int]], tasks: Mapping[str, TaskView], *, values: bool = True
    ) -> list[ItemView]:
        ids = [self.memory.chunks[task_id][number] for task_id, number in refs]
        views = [item_of_task(self.memory.read_task(item_id)) for item_id in ids]
        return [
            replace(view, task_id=task_id, number=number, value=view.value if values else None)
            for view, (task_id, number) in zip(views, refs, strict=True)
        ]

    def read_items(self, task_id: str, *, values: bool = True) -> Iterator[ItemView]:
        wanted = require_task_id(task_id)
        items = self.memory.chunks.get(wanted)
        return batches.iterate_items_of_chunk(self, wanted, None if items is None else len(items), values=values)

    def read_attempts(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        found = {task_id: self.memory.records.get(task_id) for task_id in canonical_ids(task_ids)}
        return {task_id: records for task_id, records in found.items() if records}

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = READ_LINES) -> list[LogLine]:
        wanted = require_task_id(task_id)
        require_int("limit", limit, 1, READ_LINES)
        return [line for line in self.memory.lines.get(wanted, ()) if line.cursor > (after or LogCursor())][:limit]

    def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        return self.memory.read_news(seen)

    def read_progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        progress = self.memory.progress
        return {task_id: progress[task_id] for task_id in canonical_ids(task_ids) if task_id in progress}

    # -- waiting and cancelling ----------------------------------------------------------------------------------------

    def wait(
        self,
        task_ids: Iterable[str],
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        until: Callable[[Mapping[str, TaskState]], bool] | None = None,
        meanwhile: Callable[[], None] | None = None,
        whole: bool = True,
    ) -> list[TaskView]:
        has_time = timeout_seconds is None or timeout_seconds > 0
        read = self.memory.read_task if has_time else self.memory.glance
        tasks = [read(task_id) for task_id in canonical_ids(task_ids)]
        ended = {task.id: task.state for task in tasks if task.state.is_terminal}
        if len(ended) == len(tasks) or (until is not None and until(ended)):
            return tasks
        if meanwhile is not None:
            meanwhile()
        waiting = [task for task in tasks if task.id not in ended]
        if timeout_seconds is None:
            raise endless(waiting[0])
        raise wait_timeout([task.id for task in waiting])

    def signal(
        self,
        target: str,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        target, name = require_target(target), require_signal_name(name)
        return self.memory.send_signal(target, name, encode_payload(payload), dedup_key)

    def signal_task_instance(
        self,
        task_instance: TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        found = latest_task_ids(self.read_submissions(task_instance))
        return self.signal(require_one(found, task_instance), name, payload, dedup_key=dedup_key, sent_by=sent_by)

    def read_parkings(self, task_ids: Iterable[str]) -> dict[str, list[Parking]]:
        return {}

    def can_listen(self) -> bool:
        return self.settings.listens

    def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        return self.memory.cancel_task(require_task_id(task_id), states=states)

    def cancel_tasks(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        wanted = [task_id for task_id in canonical_ids(task_ids) if task_id in self.memory.tasks]
        return {task_id: self.memory.cancel_task(task_id) for task_id in wanted}

    def release_tasks(
        self,
        task_ids: Iterable[str],
        task_instance: TaskInstanceKey,
        *,
        try_number: int | None = None,
        life: int | None = None,
    ) -> dict[str, CancelOutcome]:
        return self.ledger.release_tasks(canonical_ids(task_ids), task_instance, try_number=try_number, life=life)

    def carry_out_requests(self) -> int:
        return 0
