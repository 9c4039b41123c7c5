"""HorsiesHook: enqueue, submit, wait for, inspect and cancel horsies tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Self

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import conf
from airflow.providers.postgres.hooks import postgres as postgres_module
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.batch_calls import BatchCalls
from airflow_horsies.client.client import Client
from airflow_horsies.client.extras import (
    OWN_EXTRAS,
    given_extras,
    listens,
    make_database,
    max_payload_bytes,
    namespace_of,
    require_known,
)
from airflow_horsies.client.former_names import FormerNames
from airflow_horsies.client.hub import Waiter
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.signals import DEFAULT_SENDER
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.client.workflow_hook import WorkflowCalls
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.cluster import QueueDepth, WorkerState
from airflow_horsies.core.log import LogCursor, LogLine, Progress
from airflow_horsies.core.paging import PageCursor, TaskPage
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, Submission, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, AttemptRecord, CancelOutcome, TaskState, TaskView
from airflow_horsies.db.joining import join_call
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.provider_info import CONNECTION_TYPE


class HorsiesHook(BatchCalls, WorkflowCalls, FormerNames, PostgresHook):
    """
    Use horsies through its Postgres database.

    The connection has the type ``horsies``: host, port, login, password and database as for Postgres. Its extra may
    contain ``namespace``, ``listen`` (``notify`` or ``poll``), ``listen_host`` and ``listen_port`` (to bypass a
    pooler), ``max_payload_bytes``, and libpq options such as ``sslmode``.

    One connection is kept between calls; use the hook in a ``with`` statement, or call :meth:`close`, to close it.

    .. code-block:: python

        from airflow_horsies.hook import HorsiesHook
        from airflow_horsies.models import TaskSpec

        with HorsiesHook("horsies_default") as hook:
            task_id = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
            (task,) = hook.wait([task_id], timeout_seconds=60)
            print(task.state, task.result)

    :param horsies_conn_id: the Airflow connection to use.
    :param namespace: the namespace of work that was submitted earlier, even if the connection has changed.
    """

    conn_name_attr = "horsies_conn_id"
    default_conn_name = "horsies_default"
    conn_type = "horsies"
    hook_name = "Horsies"
    ignored_extra_options = PostgresHook.ignored_extra_options | OWN_EXTRAS

    def __init__(
        self, horsies_conn_id: str = default_conn_name, *, namespace: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(horsies_conn_id=horsies_conn_id, **kwargs)
        self.horsies_conn_id = horsies_conn_id
        self._given_namespace = namespace

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        behaviour: dict[str, Any] = CONNECTION_TYPE["ui-field-behaviour"]
        return behaviour

    # -- the connection ----------------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> Client:
        """All calls on the database; this hook has those that DAGs need."""
        return Client(self.settings)

    async def async_client(self) -> AsyncClient:
        """The same for an event loop: ``client = await hook.async_client()``."""
        # The synchronous lookup of a connection would block; both sides use the cached connection.
        if self._connection is None:
            # Hundreds of triggers may start at once, and Airflow answers a triggerer a few times per second.
            conn_id = self.horsies_conn_id
            self._connection: Any = await join_call(("connection", conn_id), lambda: get_async_connection(conn_id))
        # A token is requested over the network.
        has_tokens = given_extras(self.connection.extra_dejson).get("iam")
        return AsyncClient(await asyncio.to_thread(lambda: self.settings) if has_tokens else self.settings)

    @cached_property
    def settings(self) -> ClientSettings:
        """The validated settings of the Airflow connection."""
        connection, name = self.connection, f"connection {self.horsies_conn_id}"
        extra = given_extras(connection.extra_dejson)
        require_known(extra, name, also=self.ignored_extra_options)
        login, password, port = connection.login, connection.password, connection.port
        if extra.get("iam"):
            login, password, port = self.get_iam_token(connection)
        return ClientSettings(
            database=make_database(
                extra,
                host=connection.host,
                port=port,
                user=login,
                password=password,
                dbname=self.database or connection.schema,
                use_psycopg=getattr(postgres_module, "USE_PSYCOPG3", False),
            ),
            name=name,
            given_namespace=self._given_namespace or namespace_of(extra),
            base_url=(conf.get("api", "base_url", fallback="") or "").rstrip("/"),
            is_under_way=self._given_namespace is not None,
            listens=listens(extra, name),
            max_payload_bytes=max_payload_bytes(extra, name),
            migrates=conf.getboolean("horsies", "auto_migrate", fallback=True),
        )

    def get_conn(self) -> Any:
        """A new connection of the driver that Airflow's Postgres provider uses; the caller closes it."""
        return self.settings.database.connect()

    def close(self) -> None:
        """Close the kept connection."""
        if "client" in self.__dict__:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]
        """
        Whether the database has horsies tables, and which workers serve its queues; for the "Test" button of Airflow.

        .. code-block:: python

            healthy, message = hook.test_connection()
        """
        try:
            schema = self.client.schema
            alive = [worker for worker in self.read_workers() if worker.alive]
        except HorsiesError as error:
            return False, str(error)
        served = sorted({queue for worker in alive for queue in worker.queues})
        workers = f"{len(alive)} live worker(s) serving {', '.join(served)}" if alive else "no live worker"
        return True, f"Connected to {schema.describe()}; {workers}; namespace {self.client.namespace!r}."

    # -- sending -----------------------------------------------------------------------------------------------------

    def enqueue_task(self, spec: TaskSpec) -> str:
        """
        Send one task and return its id.

        Sending the same ``task_id`` or ``idempotency_key`` again returns the id of the first task if the arguments are
        the same, and is an error otherwise.

        .. code-block:: python

            task_id = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
        """
        return self.client.enqueue_task(spec)

    async def enqueue_task_async(self, spec: TaskSpec) -> str:
        """As :meth:`enqueue_task`, on an event loop: ``task_id = await hook.enqueue_task_async(spec)``."""
        return await (await self.async_client()).enqueue_task(spec)

    def enqueue_tasks(self, specs: Iterable[TaskSpec]) -> list[str]:
        """
        Send many tasks in one transaction: all of them, or none.

        An id or idempotency key that is already in use is refused.

        .. code-block:: python

            ids = hook.enqueue_tasks(TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(1000))
        """
        return self.client.enqueue_tasks(specs)

    def submit_task(self, spec: TaskSpec, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        """
        Send the task of a task instance exactly once, however often and from wherever this is called.

        In one life of the task instance, a call with the same name and arguments reattaches to a live task, adopts a
        completed task, and follows a failed, expired or cancelled task with the next round. With another name or other
        arguments, it sends the new task and cancels the old one. A new life begins when the task instance is cleared or
        its DAG run is deleted and created again: the running tasks of the earlier life are cancelled, and the task is
        sent.

        .. code-block:: python

            from airflow_horsies.airflow_instance import airflow_try, instance_of

            sent = hook.submit_task(TaskSpec(task_name="load"), instance_of(context), airflow_try(context))
            print(sent.task_id, sent.outcome)

        :param tried: what Airflow records of the try that submits. Without the start of its DAG run, a clear or a new
            run cannot be distinguished from a retry.
        """
        (result,) = self.submit_tasks([spec], task_instance, tried)
        return result

    def submit_tasks(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        """
        As :meth:`submit_task`, for the tasks of a batch, in one transaction. Items are identified by their name and
        arguments, not by their place; items that are no longer requested are cancelled.

        .. code-block:: python

            specs = [TaskSpec(task_name="load", kwargs={"part": part}) for part in range(10)]
            sent = hook.submit_tasks(specs, instance_of(context), airflow_try(context))
        """
        return self.client.submit_tasks(specs, task_instance, tried)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_task(self, task_id: str) -> TaskView:
        """
        One task with its result and its attempts; TaskNotFound if it never existed or is past its retention.

        .. code-block:: python

            task = hook.read_task(task_id)
            print(task.state, task.error_code, len(task.attempts))
        """
        return self.client.read_task(task_id)

    async def read_task_async(self, task_id: str) -> TaskView:
        """As :meth:`read_task`, on an event loop: ``task = await hook.read_task_async(task_id)``."""
        return await (await self.async_client()).read_task(task_id)

    def read_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """
        The existing tasks, by id.

        .. code-block:: python

            states = {task.id: task.state for task in hook.read_tasks(ids).values()}
        """
        return self.client.read_tasks(task_ids)

    def read_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        """
        The states of the existing tasks, by id; cheaper than :meth:`read_tasks`.

        .. code-block:: python

            ended = all(state.is_terminal for state in hook.read_states(ids).values())
        """
        return self.client.read_states(task_ids)

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
        """
        One page of recent tasks, newest first, without results and attempts.

        .. code-block:: python

            page = hook.list_tasks(states={TaskState.FAILED}, limit=20)
            while page.next:
                page = hook.list_tasks(states={TaskState.FAILED}, limit=20, before=page.next)
        """
        return self.client.list_tasks(
            states=states, queue=queue, task_name=task_name, error_code=error_code, before=before, limit=limit
        )

    def read_queues(self) -> list[QueueDepth]:
        """
        Every queue with live tasks or live workers, with the number of its tasks and of its live workers.

        .. code-block:: python

            unserved = [queue.queue for queue in hook.read_queues() if queue.ready and not queue.served_by]
        """
        return self.client.read_queues()

    def read_workers(self) -> list[WorkerState]:
        """
        The workers that reported in the last hour, live workers first.

        .. code-block:: python

            alive = [worker for worker in hook.read_workers() if worker.alive]
        """
        return self.client.read_workers()

    def read_catalog(
        self, *, kind: str | None = None, name: str | None = None, queue: str | None = None
    ) -> list[KnownTask]:
        """
        The tasks and workflows that workers of ``airflow_horsies.worker`` know, with their parameters.

        .. code-block:: python

            for known in hook.read_catalog(kind="task", queue="default"):
                print(known.name, known.signature, "!" if known.is_disputed else "")

        :param kind: only ``task`` or ``workflow``.
        :param name: only what has this name.
        :param queue: only what workers of this queue know.
        """
        return self.client.read_catalog(kind=kind, name=name, queue=queue)

    def read_submissions(self, task_instance: TaskInstanceKey) -> list[Submission]:
        """
        All submissions of a task instance, oldest first.

        .. code-block:: python

            ids = [submission.horsies_task_id for submission in hook.read_submissions(instance)]
        """
        return self.client.read_submissions(task_instance)

    # -- signals -------------------------------------------------------------------------------------------------------

    def signal(
        self,
        target: str | TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        """
        Send a signal to a task that waits for it, or will: see ``receive()`` and ``park_until()`` of
        ``airflow_horsies.worker``. It is stored, so it may come before the wait.

        .. code-block:: python

            hook.signal(task_id, "approved", {"by": "anna"})

        :param target: the id of a horsies task, of a horsies workflow for all tasks in it, or a task instance of
            Airflow for what it submitted last.
        :param name: the name of the signal.
        :param payload: a JSON value of up to 256 KiB, which the task receives.
        :param dedup_key: the same signal with the same key is stored once.
        :param sent_by: who sends it, for people.
        """
        client = self.client
        if isinstance(target, TaskInstanceKey):
            return client.signal_task_instance(target, name, payload, dedup_key=dedup_key, sent_by=sent_by)
        return client.signal(target, name, payload, dedup_key=dedup_key, sent_by=sent_by)

    async def signal_async(
        self,
        target: str | TaskInstanceKey,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        sent_by: str = DEFAULT_SENDER,
    ) -> SentSignal:
        """As :meth:`signal`, on an event loop: ``await hook.signal_async(task_id, "approved")``."""
        client = await self.async_client()
        if isinstance(target, TaskInstanceKey):
            return await client.signal_task_instance(target, name, payload, dedup_key=dedup_key, sent_by=sent_by)
        return await client.signal(target, name, payload, dedup_key=dedup_key, sent_by=sent_by)

    # -- what workers of airflow_horsies.worker report ---------------------------------------------------------------

    def read_attempts(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        """
        The attempts that workers reported, in order, including running and cancelled ones, by task id.

        .. code-block:: python

            for record in hook.read_attempts([task_id]).get(task_id, ()):
                print(record.number, record.outcome, record.hostname, record.metrics.get("input_rows"))
        """
        return self.client.read_attempts(task_ids)

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = 1_000) -> list[LogLine]:
        """
        The next lines that the attempts of a task logged or printed, also while the task runs.

        .. code-block:: python

            seen = None
            while lines := hook.read_lines(task_id, after=seen):
                for line in lines:
                    print(line.attempt, line.level, line.text)
                seen = lines[-1].cursor

        :param after: the last line that was read; None starts with the first line.
        :param limit: the maximum number of lines, up to 1,000.
        """
        return self.client.read_lines(task_id, after=after, limit=limit)

    def read_progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        """
        The progress of running tasks that report it, by id.

        .. code-block:: python

            for progress in hook.read_progress([task_id]).values():
                print(progress.done, progress.total, progress.stage)
        """
        return self.client.read_progress(task_ids)

    # -- waiting and cancelling --------------------------------------------------------------------------------------

    def wait(
        self,
        task_ids: Iterable[str],
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        until: Callable[[Mapping[str, TaskState]], bool] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[TaskView]:
        """
        Wait until every task has ended and return the tasks in the given order.

        Notifications end the wait at once; a read every ``poll_seconds`` covers lost notifications. The wait survives a
        restart of the database.

        .. code-block:: python

            (task,) = hook.wait([task_id], timeout_seconds=600)

        :param timeout_seconds: raise WaitTimeout after this time; None waits forever.
        :param until: return earlier, once this is true for the states of the ended tasks.
        :param meanwhile: called every other second during the wait.
        """
        return self.client.wait(
            task_ids, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds, until=until, meanwhile=meanwhile
        )

    async def wait_async(self, task_ids: Iterable[str], *, timeout_seconds: float | None = None) -> list[TaskView]:
        """As :meth:`wait`, on an event loop: ``(task,) = await hook.wait_async([task_id])``."""
        return await (await self.async_client()).wait(task_ids, timeout_seconds=timeout_seconds)

    @asynccontextmanager
    async def subscribe(
        self, task_ids: Collection[str], *, seen: Mapping[str, LogCursor] | None = None
    ) -> AsyncIterator[Waiter]:
        """
        Wait for the end of tasks on an event loop; all subscribers of a process share one listening connection.

        .. code-block:: python

            async with hook.subscribe([task_id]) as waiter:
                while waiter.pending:
                    await waiter.news()
                print(waiter.ended)

        :param seen: also follow what the tasks write, after the last line read of each task. The caller updates this
            mapping with the lines from :meth:`~airflow_horsies.client.hub.Waiter.take`.
        """
        client = await self.async_client()
        async with client.subscribe(task_ids, seen=seen) as waiter:
            yield waiter

    def cancel_task(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        """
        Cancel a task in one of the given states; a task that has already ended does not change.

        A running task is also signalled to stop; workers of ``airflow_horsies.worker`` follow the signal.

        .. code-block:: python

            outcome = hook.cancel_task(task_id)
        """
        return self.client.cancel_task(task_id, states=states)

    async def cancel_task_async(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        """As :meth:`cancel_task`, on an event loop: ``outcome = await hook.cancel_task_async(task_id)``."""
        return await (await self.async_client()).cancel_task(task_id, states=states)

    def cancel_tasks(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """
        Cancel many live tasks, a hundred per transaction; missing tasks are omitted.

        .. code-block:: python

            outcomes = hook.cancel_tasks(ids)
        """
        return self.client.cancel_tasks(task_ids)
