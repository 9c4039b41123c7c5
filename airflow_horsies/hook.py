"""HorsiesHook: enqueue, submit, wait for, inspect and cancel horsies tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import conf
from airflow.providers.postgres.hooks import postgres as postgres_module
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_horsies.database import Database, Listener, Session, run_async
from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseUnreachable,
    HorsiesError,
    InvalidTask,
    WaitTimeout,
)
from airflow_horsies.hub import POLL_SECONDS, Waiter, hub_of
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger import submissions
from airflow_horsies.ledger.schema import Migration
from airflow_horsies.ledger.submissions import Submitter
from airflow_horsies.models import (
    LIVE_STATES,
    Attempt,
    CancelOutcome,
    PageCursor,
    QueueDepth,
    RetentionClass,
    Submission,
    SubmitResult,
    TaskInstanceKey,
    TaskPage,
    TaskSpec,
    TaskState,
    TaskView,
    WorkerState,
    require_task_id,
)
from airflow_horsies.wire import scripts
from airflow_horsies.wire.encoding import DEFAULT_MAX_PAYLOAD_BYTES, EncodedTask, encode_task
from airflow_horsies.wire.schema import Schema, detect_schema
from airflow_horsies.wire.statement import Script
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")
_WireScript: TypeAlias = Callable[[Wire], Script[T]]

log = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"
LISTEN_NOTIFY = "notify"
LISTEN_POLL = "poll"
RECONNECT_SECONDS = 0.5
MAX_RECONNECT_SECONDS = 15.0
PRUNE_AFTER = timedelta(days=1)

# Handed to libpq as they are; every other extra is ours or is refused by name.
LIBPQ_EXTRAS = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "options",
        "passfile",
        "require_auth",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
OWN_EXTRAS = frozenset({"namespace", "listen", "listen_host", "listen_port", "max_payload_bytes"})
DEFAULT_CONNECT_ARGS: Mapping[str, Any] = {
    "application_name": "airflow-horsies",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


class HorsiesHook(PostgresHook):
    """
    Speak with horsies through its Postgres database.

    The connection is of type ``horsies``: host, port, login, password and database as for Postgres. Its extra may
    hold ``namespace``, ``listen`` (``notify`` or ``poll``), ``listen_host`` and ``listen_port`` (a way past a
    pooler), ``max_payload_bytes``, and libpq's own options such as ``sslmode``.

    One connection is kept between calls; use the hook in a ``with`` statement, or call :meth:`close`, to let it go.

    .. code-block:: python

        from airflow_horsies.hook import HorsiesHook
        from airflow_horsies.models import TaskSpec

        with HorsiesHook("horsies_default") as hook:
            task_id = hook.enqueue(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
            (task,) = hook.wait([task_id], timeout_seconds=60)
            print(task.state, task.result)

    :param horsies_conn_id: the Airflow connection to use.
    """

    conn_name_attr = "horsies_conn_id"
    default_conn_name = "horsies_default"
    conn_type = "horsies"
    hook_name = "Horsies"
    ignored_extra_options = PostgresHook.ignored_extra_options | OWN_EXTRAS

    def __init__(self, horsies_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(horsies_conn_id=horsies_conn_id, **kwargs)
        self.horsies_conn_id = horsies_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        from airflow_horsies.provider_info import CONNECTION_TYPE

        behaviour: dict[str, Any] = CONNECTION_TYPE["ui-field-behaviour"]
        return behaviour

    # -- sending ---------------------------------------------------------------------------------------------------

    def enqueue(self, spec: TaskSpec) -> str:
        """
        Send one task and return its id.

        Sending the same ``task_id`` or ``idempotency_key`` with the same arguments again returns the first task's
        id; with other arguments it is an error.

        .. code-block:: python

            task_id = hook.enqueue(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
        """
        encoded = self._encode(spec)
        runs = count()
        return self._write(lambda wire: scripts.enqueue_task(wire, encoded, is_rerun=next(runs) > 0))

    def enqueue_many(self, specs: Iterable[TaskSpec]) -> list[str]:
        """
        Send many tasks in one transaction: all of them, or none.

        An id or idempotency key that was used before is refused.

        .. code-block:: python

            ids = hook.enqueue_many(TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(1000))
        """
        encoded = [self._encode(spec, position) for position, spec in enumerate(specs)]
        runs = count()
        return self._write(lambda wire: scripts.enqueue_tasks(wire, encoded, is_rerun=next(runs) > 0))

    def submit(
        self,
        spec: TaskSpec,
        task_instance: TaskInstanceKey,
        *,
        life: int,
        try_number: int,
        run_started_at: datetime | None = None,
    ) -> SubmitResult:
        """
        Send the task of a task instance exactly once, however often and from wherever this is called.

        A task that is still live is reattached to, one that completed is adopted, and one that failed, expired or was
        cancelled is followed by the next round. A new life, which begins when the task instance is cleared, cancels
        what the earlier one left running and sends again.

        .. code-block:: python

            instance = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
            sent = hook.submit(TaskSpec(task_name="load"), instance, life=1, try_number=1)
            print(sent.task_id, sent.outcome)

        :param life: Airflow's ``ti.max_tries - task.retries + 1``, the first try since the last clear.
        :param try_number: the try that submits; recorded for people to see.
        :param run_started_at: when the DAG run began. A run that was deleted and made again under the same id is told
            apart by it; without it, the task of the deleted run would be adopted.
        """
        (result,) = self.submit_many(
            [spec], task_instance, life=life, try_number=try_number, run_started_at=run_started_at
        )
        return result

    def submit_many(
        self,
        specs: Sequence[TaskSpec],
        task_instance: TaskInstanceKey,
        *,
        life: int,
        try_number: int,
        run_started_at: datetime | None = None,
    ) -> list[SubmitResult]:
        """
        As :meth:`submit`, for the tasks of a batch in the order of their positions, in one transaction.

        .. code-block:: python

            specs = [TaskSpec(task_name="load", kwargs={"part": part}) for part in range(10)]
            sent = hook.submit_many(specs, instance, life=1, try_number=1)
        """
        encoded = [self._encode(spec, position) for position, spec in enumerate(specs)]
        submitter = Submitter(
            namespace=self.namespace,
            base_url=self.base_url,
            task_instance=task_instance,
            life=life,
            try_number=try_number,
            run_started_at=run_started_at,
        )
        self.ensure_ledger()
        return self._write(lambda wire: submissions.submit_tasks(wire, submitter, encoded))

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_task(self, task_id: str) -> TaskView:
        """
        One task with its result and its attempts; TaskNotFound where it never existed or is past its retention.

        .. code-block:: python

            task = hook.get_task(task_id)
            print(task.state, task.error_code, len(task.attempts))
        """
        wanted = require_task_id(task_id)
        return self._read(lambda wire: scripts.read_task(wire, wanted))

    def get_tasks(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """
        Those of the tasks that exist, by id.

        .. code-block:: python

            states = {task.id: task.state for task in hook.get_tasks(ids).values()}
        """
        wanted = _canonical_ids(task_ids)
        return self._read(lambda wire: scripts.read_tasks(wire, wanted))

    def get_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        """
        The states of those of the tasks that exist, by id; cheaper than :meth:`get_tasks`.

        .. code-block:: python

            ended = all(state.is_terminal for state in hook.get_states(ids).values())
        """
        wanted = _canonical_ids(task_ids)
        return self._read(lambda wire: scripts.read_states(wire, wanted))

    def attempts(self, task_id: str) -> tuple[Attempt, ...]:
        """
        The finished attempts of a task, first to last.

        .. code-block:: python

            for attempt in hook.attempts(task_id):
                print(attempt.number, attempt.outcome, attempt.duration_seconds, attempt.error_code)
        """
        return self.get_task(task_id).attempts

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
        Recent tasks, newest first, a page at a time; without results and attempts.

        .. code-block:: python

            page = hook.list_tasks(states={TaskState.FAILED}, limit=20)
            while page.next:
                page = hook.list_tasks(states={TaskState.FAILED}, limit=20, before=page.next)
        """
        return self._read(
            lambda wire: scripts.list_tasks(
                wire,
                states=states,
                queue=queue,
                task_name=task_name,
                error_code=error_code,
                before=before,
                limit=limit,
            )
        )

    def queues(self) -> list[QueueDepth]:
        """
        Every queue that holds live tasks or is served, with what waits and how many live workers serve it.

        .. code-block:: python

            unserved = [queue.queue for queue in hook.queues() if queue.ready and not queue.served_by]
        """
        return self._read(scripts.read_queues)

    def workers(self) -> list[WorkerState]:
        """
        The workers heard of in the last hour, live ones first.

        .. code-block:: python

            alive = [worker for worker in hook.workers() if worker.alive]
        """
        return self._read(scripts.read_workers)

    def retention_classes(self) -> list[RetentionClass]:
        """
        The retention classes a task may name; none where horsies is older than 0.5.

        .. code-block:: python

            keys = [retention.key for retention in hook.retention_classes()]
        """
        return self._read(scripts.read_retention_classes)

    def submissions_of(self, task_instance: TaskInstanceKey) -> list[Submission]:
        """
        Everything a task instance submitted, oldest first.

        .. code-block:: python

            ids = [submission.horsies_task_id for submission in hook.submissions_of(instance)]
        """
        namespace = self.namespace
        return self._read_ledger(lambda: submissions.read_submissions(namespace, task_instance))

    def submitters_of(self, task_id: str) -> list[Submission]:
        """
        The task instances behind a horsies task: none where something else sent it.

        .. code-block:: python

            for submission in hook.submitters_of(task_id):
                print(submission.task_instance)
        """
        wanted = require_task_id(task_id)
        return self._read_ledger(lambda: submissions.read_submissions_of_task(wanted))

    # -- waiting and cancelling --------------------------------------------------------------------------------------

    def wait(
        self,
        task_ids: Iterable[str],
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        until: Callable[[Mapping[str, TaskState]], bool] | None = None,
    ) -> list[TaskView]:
        """
        Wait until every task has ended and return them in the order asked for.

        Notifications wake it at once; a read every ``poll_seconds`` covers one that was lost. It outlives a restart
        of the database.

        .. code-block:: python

            (task,) = hook.wait([task_id], timeout_seconds=600)

        :param timeout_seconds: raise WaitTimeout after this long; None waits without end.
        :param until: return earlier, once this holds for the states of those that have ended.
        """
        wanted = _canonical_ids(task_ids)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        waiting = set(wanted)
        ended: dict[str, TaskState] = {}
        retry_seconds = RECONNECT_SECONDS
        while waiting:
            try:
                with ExitStack() as opened:
                    # Listen first and read second: what ends in between is then read or heard, never missed.
                    listener = opened.enter_context(Listener(self._postgres)) if self._listens else None
                    self._drop_ended(waiting, ended, until)
                    while waiting:
                        pause = _pause(poll_seconds, deadline, waiting)
                        heard = listener.wait(pause) if listener else _sleep(pause)
                        if not heard or heard & waiting:
                            self._drop_ended(waiting, ended, until)
                            retry_seconds = RECONNECT_SECONDS
            except DatabaseUnreachable as error:
                retry_seconds = _next_retry(error, retry_seconds, deadline)
                time.sleep(retry_seconds)
        found = self.get_tasks(wanted)
        return [found[task_id] for task_id in wanted]

    def cancel(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        """
        Cancel a task in one of the given states; one that has ended already is left as it is.

        A running task is also told to stop, which a worker of ``airflow_horsies.worker`` does.

        .. code-block:: python

            outcome = hook.cancel(task_id)
        """
        wanted = require_task_id(task_id)
        self.ensure_ledger()
        return self._write(lambda wire: submissions.cancel_and_signal(wire, wanted, states=states))

    def cancel_many(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """
        Cancel many tasks in one transaction, whatever their live state; those that do not exist are left out.

        .. code-block:: python

            outcomes = hook.cancel_many(ids)
        """
        wanted = _canonical_ids(task_ids)
        self.ensure_ledger()
        return self._write(lambda wire: submissions.cancel_many_and_signal(wire, wanted))

    # -- the asynchronous side ---------------------------------------------------------------------------------------

    async def get_task_async(self, task_id: str) -> TaskView:
        """As :meth:`get_task`, for triggers: ``task = await hook.get_task_async(task_id)``."""
        wanted = require_task_id(task_id)
        return await self._read_async(lambda wire: scripts.read_task(wire, wanted))

    async def get_tasks_async(self, task_ids: Iterable[str]) -> dict[str, TaskView]:
        """As :meth:`get_tasks`, for triggers: ``tasks = await hook.get_tasks_async(ids)``."""
        wanted = _canonical_ids(task_ids)
        return await self._read_async(lambda wire: scripts.read_tasks(wire, wanted))

    async def queues_async(self) -> list[QueueDepth]:
        """As :meth:`queues`, for triggers: ``queues = await hook.queues_async()``."""
        return await self._read_async(scripts.read_queues)

    async def workers_async(self) -> list[WorkerState]:
        """As :meth:`workers`, for triggers: ``workers = await hook.workers_async()``."""
        return await self._read_async(scripts.read_workers)

    async def submissions_of_async(self, task_instance: TaskInstanceKey) -> list[Submission]:
        """As :meth:`submissions_of`, for triggers: ``sent = await hook.submissions_of_async(instance)``."""
        await self._postgres_async()
        namespace = self.namespace
        return await self._read_async(lambda _: _read_if_ledger(submissions.read_submissions(namespace, task_instance)))

    async def cancel_async(self, task_id: str, *, states: Collection[TaskState] = LIVE_STATES) -> CancelOutcome:
        """As :meth:`cancel`, for triggers: ``outcome = await hook.cancel_async(task_id)``."""
        wanted = require_task_id(task_id)
        return await self._write_async(lambda wire: submissions.cancel_and_signal(wire, wanted, states=states))

    async def cancel_many_async(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """As :meth:`cancel_many`, for triggers: ``outcomes = await hook.cancel_many_async(ids)``."""
        wanted = _canonical_ids(task_ids)
        return await self._write_async(lambda wire: submissions.cancel_many_and_signal(wire, wanted))

    async def wait_async(self, task_ids: Iterable[str], *, timeout_seconds: float | None = None) -> list[TaskView]:
        """As :meth:`wait`, on an event loop: ``(task,) = await hook.wait_async([task_id])``."""
        wanted = _canonical_ids(task_ids)
        async with self.subscribe(wanted) as waiter:
            try:
                async with asyncio.timeout(timeout_seconds):
                    while waiter.pending:
                        await waiter.news()
                        for task_id, state in waiter.ended.items():
                            if state is None:
                                raise scripts.task_not_found(task_id)
            except TimeoutError:
                raise _wait_timeout(waiter.pending) from None
        found = await self.get_tasks_async(wanted)
        return [found[task_id] for task_id in wanted]

    @asynccontextmanager
    async def subscribe(self, task_ids: Collection[str]) -> AsyncIterator[Waiter]:
        """
        Hear of the end of tasks on an event loop; all subscribers of a process share one listening connection.

        .. code-block:: python

            async with hook.subscribe([task_id]) as waiter:
                while waiter.pending:
                    await waiter.news()
                print(waiter.ended)
        """
        # One id that is none would fail the read that serves every waiter.
        wanted = _canonical_ids(task_ids)
        database = await self._postgres_async()
        async with hub_of(database, listens=self._listens).subscribe(wanted) as waiter:
            yield waiter

    # -- the database itself -----------------------------------------------------------------------------------------

    def get_conn(self) -> Any:
        """A new connection of the driver that Airflow's Postgres provider uses; the caller closes it."""
        return self._postgres.connect()

    @cached_property
    def horsies_schema(self) -> Schema:
        """The horsies schema that was found; SchemaMissing or SchemaUnsupported where there is none to speak with."""
        return self._session.run(detect_schema)

    @property
    def namespace(self) -> str:
        """Keeps Airflow deployments that share one horsies database apart."""
        return str(self._extra.get("namespace") or DEFAULT_NAMESPACE)

    @property
    def base_url(self) -> str:
        """The address of this Airflow deployment, recorded with each submission."""
        return conf.get("api", "base_url", fallback="") or "http://localhost:8080"

    def ledger_version(self) -> int:
        """
        The version of the airflow_horsies tables; 0 where there are none.

        .. code-block:: python

            assert hook.ledger_version() > 0
        """
        return self._session.run(ledger_schema.read_version)

    def ensure_ledger(self) -> list[Migration]:
        """
        Create or migrate the airflow_horsies tables; what was applied. Called by itself on first use.

        .. code-block:: python

            applied = hook.ensure_ledger()
        """
        if self._ledger_is_current:
            return []
        try:
            applied = self._session.run(ledger_schema.migrate)
        except AccessDenied as error:
            raise AccessDenied(f"{error}\n{self._grants()}") from error
        self._ledger_is_current = True
        for migration in applied:
            log.info("Migrated the airflow_horsies tables to version %s (%s)", migration.version, migration.name)
        return applied

    def prune(self, *, older_than: timedelta = PRUNE_AFTER) -> int:
        """
        Forget submissions, logs and progress of tasks that horsies itself no longer keeps; how many were forgotten.

        .. code-block:: python

            forgotten = hook.prune()
        """
        self.ensure_ledger()
        return self._write(lambda wire: submissions.prune(wire, older_than=older_than))

    def change_base_url(self, *, old: str, new: str) -> int:
        """
        Take over the submissions of this deployment's former address; how many there were.

        .. code-block:: python

            hook.change_base_url(old="http://old.example", new="https://airflow.example")
        """
        self.ensure_ledger()
        namespace = self.namespace
        return self._session.run(lambda: submissions.change_base_url(namespace, old=old, new=new))

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]
        """
        Whether the database speaks horsies, and who serves its queues; for Airflow's "Test" button.

        .. code-block:: python

            healthy, message = hook.test_connection()
        """
        try:
            schema = self.horsies_schema
            alive = [worker for worker in self.workers() if worker.alive]
        except HorsiesError as error:
            return False, str(error)
        served = sorted({queue for worker in alive for queue in worker.queues})
        workers = f"{len(alive)} live worker(s) serving {', '.join(served)}" if alive else "no live worker"
        return True, f"Connected to {schema.describe()}; {workers}; namespace {self.namespace!r}"

    def run_script(self, make_script: Callable[[], Script[T]]) -> T:
        """
        Run a script of statements in one transaction and return its outcome.

        .. code-block:: python

            from airflow_horsies.wire.checks import read_server

            print(hook.run_script(read_server).version)
        """
        return self._session.run(make_script)

    def can_listen(self) -> bool:
        """
        Whether notifications wake :meth:`wait`: False where the connection asks for polling, ListenUnavailable where
        they cannot arrive.

        .. code-block:: python

            if not hook.can_listen():
                print("waiting by polling")
        """
        if not self._listens:
            return False
        Listener(self._postgres).close()
        return True

    def close(self) -> None:
        """Let the kept connection go."""
        if "_session" in self.__dict__:
            self._session.close()

    def __enter__(self) -> HorsiesHook:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    _ledger_is_current = False

    @cached_property
    def _postgres(self) -> Database:
        return self._make_database(self.connection)

    @cached_property
    def _session(self) -> Session:
        return Session(self._postgres)

    @cached_property
    def _extra(self) -> dict[str, Any]:
        return _given(self.connection.extra_dejson)

    @cached_property
    def _max_payload_bytes(self) -> int:
        given = self._extra.get("max_payload_bytes", DEFAULT_MAX_PAYLOAD_BYTES)
        try:
            return int(given)
        except (TypeError, ValueError):
            raise InvalidTask(
                "max_payload_bytes", f"in the extra of {self.horsies_conn_id} must be a whole number, not {given!r}"
            ) from None

    @property
    def _listens(self) -> bool:
        listen = self._extra.get("listen", LISTEN_NOTIFY)
        if listen not in (LISTEN_NOTIFY, LISTEN_POLL):
            raise InvalidTask(
                "listen",
                f"in the extra of connection {self.horsies_conn_id} must be 'notify' or 'poll', not {listen!r}",
            )
        return bool(listen == LISTEN_NOTIFY)

    def _make_database(self, connection: Any) -> Database:
        extra = _given(connection.extra_dejson)
        unknown = sorted(set(extra) - LIBPQ_EXTRAS - self.ignored_extra_options)
        if unknown:
            raise InvalidTask(
                "extra",
                f"of connection {self.horsies_conn_id} holds {', '.join(unknown)}, which is neither an option of this "
                f"provider ({', '.join(sorted(OWN_EXTRAS))}) nor one of libpq that it passes on",
            )
        login, password, port = connection.login, connection.password, connection.port
        if extra.get("iam"):
            login, password, port = self.get_iam_token(connection)
        args = {
            **DEFAULT_CONNECT_ARGS,
            **{name: value for name, value in extra.items() if name in LIBPQ_EXTRAS},
            "host": connection.host,
            "port": port,
            "user": login,
            "password": password,
            "dbname": self.database or connection.schema,
        }
        args = {name: value for name, value in args.items() if value not in (None, "")}
        past_pooler = {"host": extra.get("listen_host"), "port": extra.get("listen_port")}
        return Database(
            connect_args=args,
            listen_args={**args, **{name: value for name, value in past_pooler.items() if value}},
            use_psycopg=getattr(postgres_module, "USE_PSYCOPG3", False),
        )

    def _encode(self, spec: TaskSpec, position: int | None = None) -> EncodedTask:
        try:
            return encode_task(spec, max_payload_bytes=self._max_payload_bytes)
        except InvalidTask as error:
            if position is None:
                raise
            raise InvalidTask(f"task {position}: {error.field}", error.problem) from None

    def _read(self, make_script: _WireScript[T]) -> T:
        wire = Wire(self.horsies_schema)
        return self._session.run(lambda: make_script(wire))

    def _write(self, make_script: _WireScript[T]) -> T:
        self.horsies_schema.require_writable()
        return self._read(make_script)

    def _read_ledger(self, make_script: Callable[[], Script[list[T]]]) -> list[T]:
        return self._session.run(lambda: _read_if_ledger(make_script()))

    async def _postgres_async(self) -> Database:
        # Looking a connection up blocks unless it is asked for asynchronously; afterwards it is at hand for both sides.
        if self._connection is None:
            self._connection: Any = await get_async_connection(self.horsies_conn_id)
        return self._postgres

    async def _read_async(self, make_script: _WireScript[T]) -> T:
        database = await self._postgres_async()
        with database.translated():
            async with await database.connect_async() as connection:
                await connection.set_autocommit(True)
                wire = Wire(await run_async(connection, detect_schema))
                return await run_async(connection, lambda: make_script(wire))

    async def _write_async(self, make_script: _WireScript[T]) -> T:
        database = await self._postgres_async()
        with database.translated():
            async with await database.connect_async() as connection:
                await connection.set_autocommit(True)
                schema = await run_async(connection, detect_schema)
                schema.require_writable()
                await run_async(connection, ledger_schema.migrate)
                return await run_async(connection, lambda: make_script(Wire(schema)))

    def _drop_ended(
        self,
        waiting: set[str],
        ended: dict[str, TaskState],
        until: Callable[[Mapping[str, TaskState]], bool] | None,
    ) -> None:
        """Read again; nothing is waited for any more once all have ended or the caller has seen enough."""
        states = self._read(lambda wire: scripts.read_states(wire, waiting))
        for task_id in sorted(waiting - states.keys()):
            raise scripts.task_not_found(task_id)
        ended.update((task_id, state) for task_id, state in states.items() if state.is_terminal)
        waiting.difference_update(ended)
        if until is not None and until(ended):
            waiting.clear()

    def _grants(self) -> str:
        user = self._postgres.connect_args.get("user", "the user of this connection")
        database = self._postgres.connect_args.get("dbname", "the database")
        return (
            "The tables of this provider live in the Postgres schema airflow_horsies. Either let a user who may create "
            "schemas run 'airflow horsies db migrate' once and grant\n"
            f'  GRANT USAGE ON SCHEMA airflow_horsies TO "{user}";\n'
            f'  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO "{user}";\n'
            "or let this user create it:\n"
            f'  GRANT CREATE ON DATABASE "{database}" TO "{user}";'
        )


def _read_if_ledger(script: Script[list[T]]) -> Script[list[T]]:
    """Nothing was ever submitted where the ledger does not exist yet."""
    if (yield from ledger_schema.read_version()) == 0:
        return []
    return (yield from script)


def _given(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The connection form saves null for a field that was left empty."""
    return {name: value for name, value in extra.items() if value not in (None, "")}


def _canonical_ids(task_ids: Iterable[str]) -> list[str]:
    if isinstance(task_ids, str):
        raise InvalidTask("task_ids", "must be several ids, not one string; put it into a list")
    return list(dict.fromkeys(require_task_id(task_id) for task_id in task_ids))


def _sleep(seconds: float) -> set[str]:
    """Waiting without a listener: nothing is heard."""
    time.sleep(seconds)
    return set()


def _pause(poll_seconds: float, deadline: float | None, waiting: Collection[str]) -> float:
    """How long to listen before reading again; WaitTimeout when the time is up."""
    if deadline is None:
        return poll_seconds
    left = deadline - time.monotonic()
    if left <= 0:
        raise _wait_timeout(waiting)
    return min(poll_seconds, left)


def _wait_timeout(waiting: Collection[str]) -> WaitTimeout:
    return WaitTimeout(
        f"{len(waiting)} task(s) had not ended in time, {min(waiting)} among them; they go on. "
        "'airflow horsies check' tells whether a live worker serves their queue",
        task_id=min(waiting),
    )


def _next_retry(error: DatabaseUnreachable, seconds: float, deadline: float | None) -> float:
    """How long to wait before connecting again; the error itself when the time is up."""
    if deadline is not None and time.monotonic() + seconds > deadline:
        raise error
    log.warning("Lost the database while waiting, trying again in %.1f s: %s", seconds, error)
    return min(seconds * 2, MAX_RECONNECT_SECONDS)
