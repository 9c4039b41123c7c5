"""HorsiesHook: enqueue, submit, wait for, inspect and cancel horsies tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import count
from typing import TypeVar

from airflow_horsies.async_hook import AsyncHook, canonical_ids, wait_timeout
from airflow_horsies.connected_hook import LedgerBehind
from airflow_horsies.database import Backoff, Listener
from airflow_horsies.exceptions import (
    PASSING_ERRORS,
    AccessDenied,
    DatabaseBusy,
    DatabaseError,
    HistoryPartitionMissing,
    HorsiesError,
    InvalidTask,
)
from airflow_horsies.hub import FOLLOW_SECONDS, POLL_SECONDS
from airflow_horsies.ledger import attempts as ledger_attempts
from airflow_horsies.ledger import cancelling, pruning, submissions, submitting
from airflow_horsies.ledger import reports as ledger_reports
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.schema import Migration
from airflow_horsies.ledger.submitting import Submitter, UnknownRunKey
from airflow_horsies.models import (
    LIVE_STATES,
    AirflowTry,
    Attempt,
    AttemptRecord,
    CancelOutcome,
    LogCursor,
    LogLine,
    PageCursor,
    Progress,
    QueueDepth,
    Report,
    RetentionClass,
    Submission,
    SubmitResult,
    TaskInstanceKey,
    TaskNews,
    TaskPage,
    TaskSpec,
    TaskState,
    TaskView,
    WorkerState,
    require_task_id,
)
from airflow_horsies.wire import scripts
from airflow_horsies.wire.encoding import EncodedTask, encode_task
from airflow_horsies.wire.statement import Script

T = TypeVar("T")
log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.5
MAX_RECONNECT_SECONDS = 15.0
# Tasks that wait to be cancelled, each time somebody looks again at what it waits for.
MOST_REQUEST_PAGES = 10
# How long a migration is tried while others use the tables.
MIGRATE_SECONDS = 600.0
# How long a pruner waits for another one, which holds its lock for a page at a time.
MAX_PRUNE_WAITS = 600
PRUNE_WAIT_SECONDS = 0.1


class HorsiesHook(AsyncHook):
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

    # -- sending ---------------------------------------------------------------------------------------------------

    def enqueue(self, spec: TaskSpec) -> str:
        """
        Send one task and return its id.

        Sending the same ``task_id`` or ``idempotency_key`` with the same arguments again returns the first task's
        id; with other arguments it is an error.

        .. code-block:: python

            task_id = hook.enqueue(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
        """
        (encoded,) = self._encode([spec])
        runs = count()
        return self._write(lambda wire: scripts.enqueue_task(wire, encoded, is_rerun=next(runs) > 0))

    async def enqueue_async(self, spec: TaskSpec) -> str:
        """As :meth:`enqueue`, for triggers: ``task_id = await hook.enqueue_async(spec)``."""
        await self._postgres_async()
        if not spec.retention:
            self._retention_classes = await self._read_async(scripts.read_retention_classes)
        (encoded,) = self._encode([spec])
        runs = count()
        return await self._write_async(lambda wire: scripts.enqueue_task(wire, encoded, is_rerun=next(runs) > 0))

    def enqueue_many(self, specs: Iterable[TaskSpec]) -> list[str]:
        """
        Send many tasks in one transaction: all of them, or none.

        An id or idempotency key that was used before is refused.

        .. code-block:: python

            ids = hook.enqueue_many(TaskSpec(task_name="add", kwargs={"a": n, "b": 1}) for n in range(1000))
        """
        encoded = self._encode(list(specs), numbered=True)
        runs = count()
        return self._write(
            lambda wire: scripts.enqueue_tasks(wire, encoded, is_rerun=next(runs) > 0),
            pipelined=not scripts.are_many(encoded),
        )

    def submit(self, spec: TaskSpec, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        """
        Send the task of a task instance exactly once, however often and from wherever this is called.

        Within one life of the task instance, a task that is still live is reattached to, one that completed is
        adopted, and one that failed, expired or was cancelled is followed by the next round, if it has the same name
        and arguments; otherwise the new one is sent and the other cancelled. A new life begins when the task instance
        is cleared or its DAG run is made again: what the earlier one left running is cancelled, and the task is sent.

        .. code-block:: python

            from airflow_horsies.airflow_instance import airflow_try, instance_of

            sent = hook.submit(TaskSpec(task_name="load"), instance_of(context), airflow_try(context))
            print(sent.task_id, sent.outcome)

        :param tried: what Airflow records of the try that submits. Without the start of its DAG run, a clear and a run
            made again cannot be told from a retry.
        """
        (result,) = self.submit_many([spec], task_instance, tried)
        return result

    def submit_many(
        self, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
    ) -> list[SubmitResult]:
        """
        As :meth:`submit`, for the tasks of a batch, in one transaction. Items are told apart by their name and
        arguments, not by their place; those that are no longer asked for are cancelled.

        .. code-block:: python

            specs = [TaskSpec(task_name="load", kwargs={"part": part}) for part in range(10)]
            sent = hook.submit_many(specs, instance_of(context), airflow_try(context))
        """
        encoded = self._encode(list(specs), numbered=True)
        self.require_deployment()
        self.ensure_ledger()
        can_cancel = True
        while True:
            submitter = Submitter(
                namespace=self.namespace, base_url=self.base_url, task_instance=task_instance, tried=tried
            )
            submit = partial(submitting.submit_tasks, submitter=submitter, tasks=encoded, can_cancel=can_cancel)
            try:
                return self._write(submit, pipelined=not scripts.are_many(encoded))
            except UnknownRunKey as unknown:
                tried = tried.ask_about(unknown.key)
            except HistoryPartitionMissing:
                if not can_cancel:
                    raise
                # What is no longer wanted is cancelled as soon as horsies can record that.
                can_cancel = False

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
        wanted = canonical_ids(task_ids)
        return self._read(lambda wire: scripts.read_tasks(wire, wanted))

    def get_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        """
        The states of those of the tasks that exist, by id; cheaper than :meth:`get_tasks`.

        .. code-block:: python

            ended = all(state.is_terminal for state in hook.get_states(ids).values())
        """
        wanted = canonical_ids(task_ids)
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
        try:
            return self._session.run(lambda: self._submissions_of(task_instance))
        except LedgerBehind:
            self.ensure_ledger()
        return self._session.run(lambda: self._submissions_of(task_instance))

    def submitters_of(self, task_id: str) -> list[Submission]:
        """
        The task instances behind a horsies task: none where something else sent it.

        .. code-block:: python

            for submission in hook.submitters_of(task_id):
                print(submission.task_instance)
        """
        wanted = require_task_id(task_id)
        return self._read_ledger(submissions.SINCE, lambda: submissions.read_submissions_of_task(wanted), otherwise=[])

    def submissions_of_run(self, dag_id: str, run_id: str, *, limit: int = 1_000) -> list[Submission]:
        """
        What each task instance of a DAG run submitted last.

        .. code-block:: python

            ids = [submission.horsies_task_id for submission in hook.submissions_of_run("sales", "manual__1")]
        """
        own = self.namespace, self.base_url
        return self._read_ledger(
            submissions.SINCE,
            lambda: submissions.read_submissions_of_run(*own, dag_id, run_id, limit=limit),
            otherwise=[],
        )

    def reports(self, *, limit: int = ledger_reports.KEEP) -> list[Report]:
        """
        The reports that tasks made, newest period first.

        .. code-block:: python

            places = [report.location for report in hook.reports()]
        """
        return self._read_ledger(ledger_reports.SINCE, lambda: ledger_reports.list_reports(limit=limit), otherwise=[])

    def report_page(self, name: str, period_start: datetime, period_end: datetime) -> str | None:
        """
        The page of a report, if there is one.

        .. code-block:: python

            page = hook.report_page("reliability", monday, monday + timedelta(days=7))
        """
        return self._read_ledger(
            ledger_reports.SINCE, lambda: ledger_reports.read_report(name, period_start, period_end), otherwise=None
        )

    # -- what workers of airflow_horsies.worker tell ---------------------------------------------------------------

    def logs(
        self, task_id: str, after: LogCursor | None = None, limit: int = ledger_attempts.READ_LINES
    ) -> list[LogLine]:
        """
        The next lines that the attempts of a task logged or printed, also while it runs.

        .. code-block:: python

            seen = None
            while lines := hook.logs(task_id, after=seen):
                for line in lines:
                    print(line.attempt, line.level, line.text)
                seen = lines[-1].cursor

        :param after: the last line that was seen; None begins with the first.
        :param limit: at most so many lines, up to 1,000.
        """
        wanted = require_task_id(task_id)
        if not 1 <= limit <= ledger_attempts.READ_LINES:
            raise InvalidTask("limit", f"must be from 1 to {ledger_attempts.READ_LINES}, not {limit!r}")
        seen = {wanted: after or LogCursor()}
        news: dict[str, TaskNews] = self._read_ledger(
            ledger_attempts.SINCE, lambda: ledger_attempts.read_news(seen, limit=limit), otherwise={}
        )
        return list(news[wanted].lines) if wanted in news else []

    def progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        """
        How far those of the tasks are that run and tell it, by id.

        .. code-block:: python

            for progress in hook.progress([task_id]).values():
                print(progress.done, progress.total, progress.stage)
        """
        wanted = canonical_ids(task_ids)
        return self._read_ledger(ledger_attempts.SINCE, lambda: ledger_attempts.read_progress(wanted), otherwise={})

    def attempt_records(self, task_id: str) -> tuple[AttemptRecord, ...]:
        """
        What workers told of the attempts of a task, first to last, also of one that runs or was cancelled.

        .. code-block:: python

            for record in hook.attempt_records(task_id):
                print(record.number, record.outcome, record.hostname, record.metrics.get("input_rows"))
        """
        wanted = require_task_id(task_id)
        return self.attempt_records_of([wanted]).get(wanted, ())

    def attempt_records_of(self, task_ids: Iterable[str]) -> dict[str, tuple[AttemptRecord, ...]]:
        """
        As :meth:`attempt_records`, for many tasks by id; those nothing was told of are left out.

        .. code-block:: python

            records = hook.attempt_records_of(ids)
        """
        wanted = canonical_ids(task_ids)
        return self._read_ledger(ledger_attempts.SINCE, lambda: ledger_attempts.read_attempts(wanted), otherwise={})

    def news(self, seen: Mapping[str, LogCursor]) -> dict[str, TaskNews]:
        """
        The next lines of many tasks, at most 1,000 of each, and how far each is, in one statement.

        .. code-block:: python

            news = hook.news({task_id: LogCursor()})

        :param seen: the last line that was seen of each task.
        """
        return self._read_ledger(ledger_attempts.SINCE, lambda: ledger_attempts.read_news(seen), otherwise={})

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
        Wait until every task has ended and return them in the order asked for.

        Notifications wake it at once; a read every ``poll_seconds`` covers one that was lost. It outlives a restart
        of the database.

        .. code-block:: python

            (task,) = hook.wait([task_id], timeout_seconds=600)

        :param timeout_seconds: raise WaitTimeout after this long; None waits without end.
        :param until: return earlier, once this holds for the states of those that have ended.
        :param meanwhile: called every other second while it waits.
        """
        wanted = canonical_ids(task_ids)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        waiting = set(wanted)
        ended: dict[str, TaskState] = {}
        backoff = Backoff(RECONNECT_SECONDS, MAX_RECONNECT_SECONDS)
        while waiting:
            try:
                with ExitStack() as opened:
                    # Listen first and read second: what ends in between is then read or heard, never missed.
                    listener = opened.enter_context(Listener(self._postgres)) if self._listens else None
                    rest = _Rest(listener, meanwhile)
                    self._drop_ended(waiting, waiting, ended, until)
                    read_all_at = time.monotonic() + poll_seconds
                    while waiting:
                        left = max(read_all_at - time.monotonic(), 0)
                        heard = rest.until_heard(waiting, _pause(left, deadline, waiting))
                        # Only what was heard of, as reading all of a large batch at each end would take all the time.
                        if not heard or time.monotonic() >= read_all_at:
                            self._carry_out_requests()
                            heard, read_all_at = set(waiting), time.monotonic() + poll_seconds
                        self._drop_ended(heard, waiting, ended, until)
                        backoff.reset()
            except PASSING_ERRORS as error:
                time.sleep(_retry_pause(error, backoff.next_pause(), deadline))
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
        return self._write(lambda wire: cancelling.cancel_in_any_ledger(wire, wanted, states=states))

    def cancel_many(self, task_ids: Iterable[str]) -> dict[str, CancelOutcome]:
        """
        Cancel many tasks in one transaction, whatever their live state; those that do not exist are left out.

        .. code-block:: python

            outcomes = hook.cancel_many(ids)
        """
        outcomes: dict[str, CancelOutcome] = {}
        for page in cancelling.pages(canonical_ids(task_ids)):
            outcomes |= self._write(partial(cancelling.cancel_many_in_any_ledger, task_ids=page))
        return outcomes

    def release(
        self, task_ids: Iterable[str], task_instance: TaskInstanceKey, *, try_number: int | None = None
    ) -> dict[str, CancelOutcome]:
        """
        Say that a task instance no longer wants these tasks: those that no other one shares are cancelled.

        Where horsies cannot record a cancelled task now, it is cancelled as soon as it can.

        .. code-block:: python

            outcomes = hook.release(ids, instance)

        :param try_number: the try that lets go of its own accord: it does nothing where a later one wants them. None
            where a person wishes it.
        """
        wanted = canonical_ids(task_ids)
        release = partial(
            cancelling.release,
            namespace=self.namespace,
            task_instance=task_instance,
            task_ids=wanted,
            try_number=try_number,
        )
        if len(wanted) <= cancelling.CANCELS_AT_ONCE:
            try:
                return self._write(release)
            except HistoryPartitionMissing:
                return self._write(partial(release, later=True))
        # First the wish as a whole, then a page at a time: whatever happens in between, somebody carries it out.
        outcomes = self._write(partial(release, later=True))
        with suppress(HistoryPartitionMissing):
            for page in cancelling.pages(wanted):
                outcomes |= self._write(partial(cancelling.carry_out_requests, ids=page))
        return outcomes

    # -- the database itself -----------------------------------------------------------------------------------------

    def ledger_version(self) -> int:
        """
        The version of the airflow_horsies tables; 0 where there are none.

        .. code-block:: python

            assert hook.ledger_version() > 0
        """
        return self._session.run(ledger_schema.read_version)

    def ensure_ledger(self, *, by_hand: bool = False) -> list[Migration]:
        """
        Create or migrate the airflow_horsies tables; what was applied. Called by itself on first use.

        .. code-block:: python

            applied = hook.ensure_ledger()

        :param by_hand: migrate them also where Airflow is told not to do so by itself.
        """
        if self._ledger_is_current:
            return []
        # Nothing is created in a database that is not horsies'.
        self.horsies_schema.require_writable()
        try:
            applied = self._migrate_in_the_end(ledger_schema.migrate if by_hand else self._make_ledger)
        except AccessDenied as error:
            raise AccessDenied(f"{error}\n{self._grants()}") from error
        self._ledger_is_current = True
        for migration in applied:
            log.info("Migrated the airflow_horsies tables to version %s (%s)", migration.version, migration.name)
        return applied

    def _migrate_in_the_end(self, make_ledger: Callable[[], Script[list[Migration]]]) -> list[Migration]:
        """Again and again while somebody else reads the tables for long, as pg_dump does."""
        backoff = Backoff(RECONNECT_SECONDS, MAX_RECONNECT_SECONDS)
        gives_up_at = time.monotonic() + MIGRATE_SECONDS
        while True:
            try:
                return self._session.run(make_ledger)
            except DatabaseBusy as error:
                pause_seconds = backoff.next_pause()
                if time.monotonic() + pause_seconds > gives_up_at:
                    raise
                log.warning("The airflow_horsies tables are migrated again in %.1f s: %s", pause_seconds, error)
                time.sleep(pause_seconds)

    def prune(self, *, older_than: timedelta = pruning.PRUNE_AFTER, lines_older_than: timedelta | None = None) -> int:
        """
        Forget submissions, logs and progress of tasks that horsies itself no longer keeps; how many were forgotten.

        Workers do so by themselves. Each page is a transaction of its own.

        .. code-block:: python

            forgotten = hook.prune(lines_older_than=timedelta(days=7))

        :param older_than: leave what was heard of within this time.
        :param lines_older_than: also remove log lines of this age, whatever became of their task.
        """
        self.ensure_ledger()
        rule = pruning.PruneRule(older_than=older_than, lines_older_than=lines_older_than)
        forgotten, after, waits = 0, None, 0
        while waits < MAX_PRUNE_WAITS:
            page = self._write(partial(pruning.prune_page, rule=rule, after=after))
            if page is None:
                waits += 1
                time.sleep(PRUNE_WAIT_SECONDS)
                continue
            forgotten, after = forgotten + page.submissions, page.last_id
            if page.is_last:
                return forgotten
        raise DatabaseError("Another process prunes the airflow_horsies tables and does not end. Try again later.")

    def change_base_url(self, *, old: str, new: str) -> int:
        """
        Take over the submissions of this deployment's former address; how many there were.

        .. code-block:: python

            hook.change_base_url(old="http://old.example", new="https://airflow.example")
        """
        self.ensure_ledger()
        namespace = self.namespace
        return self._session.run(
            lambda: submissions.change_base_url(namespace, old=old.rstrip("/"), new=new.rstrip("/"))
        )

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

    # -- inside ------------------------------------------------------------------------------------------------------

    _ledger_is_current = False

    @cached_property
    def _retention_classes(self) -> list[RetentionClass]:
        return self.retention_classes()

    def _encode(self, specs: Sequence[TaskSpec], *, numbered: bool = False) -> list[EncodedTask]:
        """What is wrong with a task is found before anything is opened."""
        sent_at = datetime.now(UTC)
        encoded = [self._encode_one(spec, sent_at, n if numbered else None) for n, spec in enumerate(specs)]
        queues = {spec.queue for spec in specs if not spec.retention}
        found = {queue: scripts.class_of_queue(self._retention_classes, queue) for queue in queues}
        mapped = {queue: key for queue, key in found.items() if key is not None}
        for n, spec in enumerate(specs):
            if not spec.retention and spec.queue in mapped:
                encoded[n] = self._encode_one(replace(spec, retention=mapped[spec.queue]), sent_at)
        return encoded

    def _encode_one(self, spec: TaskSpec, sent_at: datetime, number: int | None = None) -> EncodedTask:
        try:
            return encode_task(spec, max_payload_bytes=self._max_payload_bytes, sent_at=sent_at)
        except InvalidTask as error:
            if number is None:
                raise
            raise InvalidTask(f"task {number}: {error.field}", error.problem) from None

    def _read_ledger(self, since: int, make_script: Callable[[], Script[T]], *, otherwise: T) -> T:
        if self._ledger_is_current:
            return self._session.run(make_script)
        return self._session.run(lambda: ledger_schema.read_since(since, make_script(), otherwise))

    def _carry_out_requests(self) -> None:
        """Cancel what could not be cancelled when that was asked for; who waits does so for something else."""
        try:
            for _ in range(MOST_REQUEST_PAGES):
                if len(self._write(cancelling.carry_out_requests)) < cancelling.CANCELS_AT_ONCE:
                    break
        except HorsiesError as error:
            log.warning("Tasks that are to be cancelled are not yet: %s", error)

    def _drop_ended(
        self,
        to_read: Collection[str],
        waiting: set[str],
        ended: dict[str, TaskState],
        until: Callable[[Mapping[str, TaskState]], bool] | None,
    ) -> None:
        """Read again; nothing is waited for any more once all have ended or the caller has seen enough."""
        states = self._read(lambda wire: scripts.read_waited_for(wire, to_read))
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


class _Rest:
    """The time between two reads; every other second somebody else has a turn, however often a task ends."""

    def __init__(self, listener: Listener | None, meanwhile: Callable[[], None] | None) -> None:
        self._listener = listener
        self._meanwhile = meanwhile
        self._turn = time.monotonic() + FOLLOW_SECONDS

    def until_heard(self, waiting: set[str], seconds: float) -> set[str]:
        """Those of the tasks that are heard to have ended; none when the time is up."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._meanwhile is not None and now >= self._turn:
                self._meanwhile()
                self._turn = time.monotonic() + FOLLOW_SECONDS
            if now >= end:
                return set()
            pause = max((end if self._meanwhile is None else min(end, self._turn)) - time.monotonic(), 0)
            heard = self._listener.wait(pause) if self._listener else _sleep(pause)
            if heard & waiting:
                return heard & waiting


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
        raise wait_timeout(waiting)
    return min(poll_seconds, left)


def _retry_pause(error: HorsiesError, seconds: float, deadline: float | None) -> float:
    """How long to wait before connecting again; the error itself when the time is up."""
    if deadline is not None and time.monotonic() + seconds > deadline:
        raise error
    log.warning("Cannot read the database while waiting, trying again in %.1f s: %s", seconds, error)
    return seconds
