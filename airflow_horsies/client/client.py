"""The client of one horsies database for synchronous code."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from airflow_horsies.client import accepting, batches, calls, signals
from airflow_horsies.client.calls import Scope, canonical_ids
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Step, Transaction
from airflow_horsies.client.waiting import POLL_SECONDS, wait
from airflow_horsies.client.workflow_clients import WorkflowClient
from airflow_horsies.core.batch import BatchPlaces, BatchSpec, BatchTasks, ChunkCount, ItemView, SubmittedBatch
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.cluster import QueueDepth, RetentionClass, WorkerState
from airflow_horsies.core.log import READ_LINES, LogCursor, LogLine, Progress, TaskNews
from airflow_horsies.core.paging import PageCursor, TaskPage
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, OnClear, Submission, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, AttemptRecord, CancelOutcome, TaskState, TaskView
from airflow_horsies.core.validation import require_int, require_task_id
from airflow_horsies.db.errors import is_schema_mismatch
from airflow_horsies.db.listener import Listener
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import HorsiesError, TaskNotFound
from airflow_horsies.ledger import attempts, cancelling, chunks, submissions
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.messages import Parking
from airflow_horsies.wire import cluster, reading
from airflow_horsies.wire.known import KnownSchema, WireScript, writing
from airflow_horsies.wire.schema import Schema

T = TypeVar("T")

# How long to retry a migration while others use the tables.
MIGRATE_SECONDS = 600.0


class Client(WorkflowClient):
    """All calls on a horsies database, over one connection that reconnects.

    :param session: the connection; by default without time limits.
    """

    def __init__(
        self, settings: ClientSettings, *, session: Session | None = None, migrate_seconds: float = MIGRATE_SECONDS
    ) -> None:
        self.scope = Scope(settings, migrate_seconds=migrate_seconds)
        self.session = session or Session(settings.database)
        self._known = KnownSchema()

    @property
    def settings(self) -> ClientSettings:
        return self.scope.settings

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    @property
    def schema(self) -> Schema:
        """The detected horsies schema; SchemaMissing or SchemaUnsupported if there is none that we support."""
        return self.run(self._known.find)

    def stay_in(self, namespace: str | None) -> None:
        """Keep work under way in the namespace it was submitted in, even if the connection has changed."""
        self.scope.stay_in(namespace)

    def close(self) -> None:
        """Close the kept connection."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def enqueue_task(self, spec: TaskSpec) -> str:
        return self.drive(calls.enqueue_task(self.scope, spec))

    def enqueue_tasks(self, specs: Iterable[TaskSpec]) -> list[str]:
        return self.drive(calls.enqueue_tasks(self.scope, list(specs)))

    def submit_tasks(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        return self.drive(calls.submit_tasks(self.scope, list(specs), task_instance, tried))

    def submit_batch(
        self,
        batch: BatchSpec,
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        *,
        on_clear: OnClear | str = OnClear.ALL,
    ) -> SubmittedBatch:
        return self.drive(batches.submit_batch(self.scope, batch, task_instance, tried, on_clear=on_clear))

    def enqueue_items(self, batch: BatchSpec) -> list[str]:
        return self.drive(batches.enqueue_items(self.scope, batch))

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_task(self, task_id: str) -> TaskView:
        return self.read(partial(reading.read_task, task_id=require_task_id(task_id)))

    def read_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        return self.read(partial(reading.read_tasks, ids=canonical_ids(task_ids)))

    def read_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        return self.read(partial(reading.read_states, ids=canonical_ids(task_ids)))

    def read_outlines(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """As read_tasks, without arguments and results."""
        return self.read(partial(reading.read_tasks, ids=canonical_ids(task_ids), whole=False))

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
        return self.read(
            partial(
                reading.list_tasks,
                states=states,
                queue=queue,
                task_name=task_name,
                error_code=error_code,
                before=before,
                limit=limit,
            )
        )

    def read_queues(self) -> list[QueueDepth]:
        return self.read(cluster.read_queues)

    def read_catalog(
        self, *, kind: str | None = None, name: str | None = None, queue: str | None = None
    ) -> list[KnownTask]:
        return self.drive(accepting.read_catalog(kind=kind, name=name, queue=queue))

    def read_workers(self) -> list[WorkerState]:
        return self.read(cluster.read_workers)

    def read_retention_classes(self) -> list[RetentionClass]:
        return self.read(cluster.read_retention_classes)

    # -- what was submitted, and what workers report -------------------------------------------------------------------

    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        return self.drive(calls.read_submissions(self.scope, task_instance))

    def read_submissions_of_task(self, task_id: str) -> list[Submission]:
        wanted = require_task_id(task_id)
        return self.read_ledger(submissions.SINCE, lambda: submissions.read_submissions_of_task(wanted), otherwise=[])

    def read_submissions_of_run(self, dag_id: str, run_id: str, *, limit: int = 1_000) -> list[Submission]:
        read = partial(
            submissions.read_submissions_of_run, self.namespace, self.settings.base_url, dag_id, run_id, limit=limit
        )
        return self.read_ledger(submissions.SINCE, read, otherwise=[])

    def read_batch(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchPlaces:
        return self.drive(batches.read_batch(self.scope, task_instance, life=life, size=size))

    def read_batch_tasks(
        self, task_instance: TaskInstanceKey, *, life: int | None = None, size: int | None = None
    ) -> BatchTasks:
        """The tasks of the last submission of a task instance, without their items."""
        return self.drive(batches.read_batch_tasks(self.scope, task_instance, life=life, size=size))

    def count_items(self, task_ids: Collection[str], among: Collection[str] | None = None) -> dict[str, ChunkCount]:
        return self.drive(batches.count_items(task_ids, among)) if task_ids else {}

    def read_items_of(
        self, refs: Sequence[tuple[str, int]], tasks: Mapping[str, TaskView], *, values: bool = True
    ) -> list[ItemView]:
        return self.drive(batches.read_items(refs, tasks, values=values))

    def read_items(self, task_id: str, *, values: bool = True) -> Iterator[ItemView]:
        wanted = require_task_id(task_id)
        sizes = self.run(lambda: chunks.read_sizes([wanted]))
        return batches.iterate_items_of_chunk(self, wanted, sizes.get(wanted), values=values)

    def read_attempts(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        wanted = canonical_ids(task_ids)
        return self.read_ledger(attempts.SINCE, lambda: attempts.read_attempts(wanted), otherwise={})

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = READ_LINES) -> list[LogLine]:
        wanted = require_task_id(task_id)
        require_int("limit", limit, 1, READ_LINES)
        read = partial(attempts.read_news, {wanted: after or LogCursor()}, limit=limit)
        news: dict[str, TaskNews] = self.read_ledger(attempts.SINCE, read, otherwise={})
        return list(news[wanted].lines) if wanted in news else []

    def read_news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        return self.read_ledger(attempts.SINCE, lambda: attempts.read_news(seen), otherwise={})

    def read_progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        wanted = canonical_ids(task_ids)
        return self.read_ledger(attempts.SINCE, lambda: attempts.read_progress(wanted), otherwise={})

    # -- signals -------------------------------------------------------------------------------------------------------

    def signal(
        self,
        target: str,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = signals.DEFAULT_SENDER,
    ) -> SentSignal:
        """Send a signal to a task or to a workflow."""
        return self.drive(signals.send_signal(self.scope, target, name, payload, dedup_key=dedup_key, sent_by=sent_by))

    def signal_task_instance(
        self,
        task_instance: TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = signals.DEFAULT_SENDER,
    ) -> SentSignal:
        """Send a signal to what a task instance submitted last."""
        return self.drive(
            signals.send_signal_to_task_instance(
                self.scope, task_instance, name, payload, dedup_key=dedup_key, sent_by=sent_by
            )
        )

    def read_parkings(self, task_ids: Iterable[str]) -> dict[str, list[Parking]]:
        """The waits of tasks that have parked, by task."""
        return self.drive(signals.read_parkings(canonical_ids(task_ids)))

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
        return wait(
            self,
            canonical_ids(task_ids),
            timeout_seconds=timeout_seconds,
            poll_seconds=poll_seconds,
            until=until,
            meanwhile=meanwhile,
            whole=whole,
        )

    def can_listen(self) -> bool:
        """Whether notifications wake :meth:`wait`; ListenUnavailable if they cannot arrive."""
        if self.settings.listens:
            Listener(self.settings.database).close()
        return self.settings.listens

    def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        return self.write(
            partial(cancelling.cancel_task_in_any_ledger, task_id=require_task_id(task_id), states=states)
        )

    def cancel_tasks(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        return self.drive(calls.cancel_tasks(task_ids))

    def release_tasks(
        self,
        task_ids: Iterable[str],
        task_instance: TaskInstanceKey,
        *,
        try_number: int | None = None,
        life: int | None = None,
    ) -> dict[str, CancelOutcome]:
        return self.drive(calls.release_tasks(self.scope, task_ids, task_instance, try_number=try_number, life=life))

    def carry_out_requests(self) -> int:
        """Carry out a page of requested cancels; returns the number of tasks."""
        return len(self.write(cancelling.carry_out_requests))

    # -- scripts -------------------------------------------------------------------------------------------------------

    def run(self, make_script: Callable[[], Script[T]]) -> T:
        """Run a script in one transaction and return its result."""
        return self.session.run(make_script)

    def read(self, make_script: WireScript[T], *, pipelined: bool = True) -> T:
        """Run a script with the known schema; once more if the schema has changed."""
        try:
            return self.session.run(lambda: self._known.on_wire(make_script), pipelined=pipelined)
        except HorsiesError as error:
            if not (isinstance(error, TaskNotFound) or is_schema_mismatch(error)):
                raise
        self._known.invalidate()
        return self.session.run(lambda: self._known.on_wire(make_script), pipelined=pipelined)

    def write(self, make_script: WireScript[T]) -> T:
        return self.read(writing(make_script))

    def read_ledger(self, since: int, make_script: Callable[[], Script[T]], *, otherwise: T) -> T:
        """The result of a script on our tables, if they have at least that version."""
        if self.scope.ledger_is_current:
            return self.run(make_script)
        return self.run(lambda: ledger_schema.read_since(since, make_script(), otherwise))

    def drive(self, call: Call[T]) -> T:
        try:
            step = next(call)
            while True:
                try:
                    outcome = self._take(step)
                except Exception as error:
                    step = call.throw(error)
                else:
                    step = call.send(outcome)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _take(self, step: Step) -> Any:
        match step:
            case Transaction():
                return self.read(step.make_script, pipelined=step.pipelined)
            case PlainTransaction():
                return self._run_plain(step)
            case Pause():
                return time.sleep(step.seconds)

    def _run_plain(self, step: PlainTransaction) -> Any:
        return self.session.run(step.make_script)
