"""A child process of a worker, and how it runs a task."""

from __future__ import annotations

import json
import logging
import multiprocessing.util
import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from horsies import TaskError, TaskResult

from airflow_horsies.borrowed.horsies import Assignment, OperationalErrorCode, OutcomeCode, find_assignment
from airflow_horsies.core.signals import AWAITING_SIGNAL, MAX_CHECKPOINT_BYTES, encode_payload
from airflow_horsies.db.connection import Database
from airflow_horsies.worker.announcing import Announcer
from airflow_horsies.worker.attempt import Running, RunningAttempt, RunningItem, StopReason
from airflow_horsies.worker.callbacks import Addresses, mint_addresses
from airflow_horsies.worker.chunk import ChunkOrder, ChunkRun, ItemTask, Tools
from airflow_horsies.worker.engines.engine import Spark, make_spark
from airflow_horsies.worker.errors import Failure, TaskFault, code_text, describe, is_unstorable, short
from airflow_horsies.worker.forking import end_copy
from airflow_horsies.worker.housekeeping import Housekeeper
from airflow_horsies.worker.logs import AttemptLog, Capture
from airflow_horsies.worker.masking import mask_known
from airflow_horsies.worker.outcomes import OutcomeWriter
from airflow_horsies.worker.parent_death import die_with_parent
from airflow_horsies.worker.parking import Parker
from airflow_horsies.worker.reporter import Reporter, database_of
from airflow_horsies.worker.settings import WorkerSettings
from airflow_horsies.worker.signals import Mailbox, TaskParked
from airflow_horsies.worker.stopping import Stopper

if TYPE_CHECKING:
    from airflow_horsies.worker.catalog import Catalog

log = logging.getLogger(__name__)

Outcome = TaskResult[Any, TaskError]
# Takes the Spark session, or None for a task without Spark. Runs the author's function and returns JSON.
Body = Callable[[Any], Any]


# The outcome and the error code of a stopped attempt.
STOPPED: dict[StopReason, tuple[str, OutcomeCode | str]] = {
    StopReason.CANCELLED: ("CANCELLED", OutcomeCode.TASK_CANCELLED),
    StopReason.CLAIM_LOST: ("CANCELLED", OutcomeCode.TASK_CANCELLED),
    StopReason.TIMED_OUT: ("FAILED", OutcomeCode.TASK_TIMEOUT),
    StopReason.ITEM_TIMED_OUT: ("FAILED", OutcomeCode.TASK_TIMEOUT),
    StopReason.GOOD_UNTIL_PASSED: ("FAILED", "GOOD_UNTIL_PASSED"),
}


class Child:
    """One process of a worker, which runs one task at a time on its main thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        uses_spark: bool,
        make_catalog: Callable[[], Catalog | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._make_catalog = make_catalog
        self._capture = Capture(self._current_log)
        self._stopper = Stopper()
        self._spark: Spark | None = make_spark(settings.spark, self._on_spark_line) if uses_spark else None
        database = database_of(settings.direct_database_url or settings.database_url)
        self._reporter = Reporter(database, stop=self._stop, before_report=self._before_report)
        self._outcomes = OutcomeWriter(self._reporter.make_client, self._stop)
        self.mailbox = Mailbox(self._reporter.make_client, self._stop)
        self._parker = Parker(self._reporter.make_client)
        self._database = database
        self._chunk: ChunkRun | None = None
        self._housekeeper = Housekeeper(
            database, settings.housekeeping.rule, settings.housekeeping.every.total_seconds()
        )
        self._current: RunningAttempt | None = None
        self._stopping = threading.Lock()

    def start(self) -> None:
        """Called once, on the main thread, before the first task. Must return quickly."""
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid is not None:
            die_with_parent(parent.pid)
            Announcer(self._database, parent.pid, make_catalog=self._make_catalog).start()
        urls = [self._settings.database_url, self._settings.direct_database_url or "", self._settings.spark.master]
        mask_known(self._settings.spark.conf, urls)
        self._capture.install()
        self._stopper.install()
        self._reporter.start()
        multiprocessing.util.Finalize(None, self._reporter.flush, exitpriority=20)
        multiprocessing.util.Finalize(None, self._parker.flush, exitpriority=15)
        if self._settings.housekeeping.every:
            self._housekeeper.start()
        if self._spark is not None:
            self._spark.start()
            multiprocessing.util.Finalize(None, self._spark.stop, exitpriority=10)

    @property
    def database(self) -> Database:
        return self._database

    @property
    def current(self) -> RunningAttempt | None:
        return self._current

    @property
    def chunk(self) -> ChunkRun | None:
        return self._chunk

    def find_assignment(self) -> Assignment | None:
        """The task on this thread according to horsies' table, for releases whose frames do not show it."""
        if self._current is not None or threading.current_thread() is not threading.main_thread():
            return None
        claim = self._reporter.find_claim()
        if claim is None:
            return None
        log.warning(
            "This release of horsies does not show which task it runs. Using task %s from its table.", claim.task_id
        )
        return Assignment(claim.task_id, claim.worker_id, claim.claimed_at, timeout_seconds=None)

    def run(self, assignment: Assignment, body: Body, *, with_spark: bool, stops_at_good_until: bool) -> Outcome:
        """Run the body of a task as an attempt with a log, progress and a way to stop it."""
        attempt = self._begin(assignment, stops_at_good_until=stops_at_good_until)
        value: Any = None
        error: BaseException | None = None
        spark = self._spark if with_spark else None
        pid = os.getpid()
        try:
            try:
                with self._stopper.armed(attempt):
                    value = body(spark.open_session(assignment.task_id) if spark else None)
            except BaseException as raised:
                error = raised
            end_copy(pid, error)
            if error is not None:
                self._log_error(attempt, error)
            failure = None if error is None else describe(error)
            self._settle(attempt)
            if spark is not None:
                failure = self._leave_spark(spark, attempt, failure)
            self._capture.end_lines()
            return self._end(attempt, value, error, failure)
        finally:
            self._leave(attempt)

    def run_chunk(self, assignment: Assignment, task: ItemTask, given: Mapping[str, Any]) -> Outcome:
        """Run the items of a chunk as one attempt."""
        attempt = self._begin(assignment, stops_at_good_until=False)
        attempt.reports_own_progress = True
        spark = self._spark if task.with_spark else None
        failure: Failure | None = None
        try:
            try:
                failure = self._run_items(attempt, task, ChunkOrder.parse(given), spark)
            except TaskFault as fault:
                failure = describe(fault)
            self._settle(attempt)
            if spark is not None:
                self._leave_spark(spark, attempt, None)
            return self._end_chunk(attempt, failure)
        finally:
            self._outcomes.close()
            self._chunk = None
            self._leave(attempt)

    def _run_items(
        self, attempt: RunningAttempt, task: ItemTask, order: ChunkOrder, spark: Spark | None
    ) -> Failure | None:
        begun = self._outcomes.open(attempt)
        if begun is None:
            return None
        tools = Tools(self._stopper, self._capture, self._outcomes, spark, self._restart_spark)
        run = self._chunk = ChunkRun(attempt, task, order, begun, tools)
        run.run()
        return run.find_failure()

    def _end_chunk(self, attempt: RunningAttempt, failure: Failure | None) -> Outcome:
        run = self._chunk
        if attempt.stop_reason is not None and (run is None or not run.is_done):
            return _failed(*_end_stopped(attempt, attempt.stop_reason))
        if run is not None and failure is None:
            attempt.end("COMPLETED")
            return TaskResult(ok=run.summary)
        failure = failure or Failure("OUTCOMES_UNAVAILABLE", "The chunk was not run.")
        attempt.log.add_note("ERROR", f"{failure.code}: {failure.message}")
        attempt.end("FAILED", failure.code, failure.message)
        return _failed(failure.code, failure.message)

    def _begin(self, assignment: Assignment, *, stops_at_good_until: bool) -> RunningAttempt:
        attempt_log = AttemptLog(self._settings.log_lines, self._settings.log_bytes)
        attempt = RunningAttempt(assignment, attempt_log, stops_at_good_until=stops_at_good_until)
        self._capture.flush()
        self._current = attempt
        self._reporter.begin(attempt)
        return attempt

    def _leave(self, attempt: RunningAttempt) -> None:
        if attempt.outcome is None:
            attempt.end("FAILED")
        self._current = None
        self._reporter.end(attempt)

    def _log_error(self, attempt: RunningAttempt, error: BaseException) -> None:
        self._capture.end_lines()
        if attempt.stop_reason is not None:
            attempt.log.add_place(error)
        elif not isinstance(error, TaskFault | TaskParked):
            attempt.log.add_exception(error)

    def _settle(self, attempt: RunningAttempt) -> None:
        if not self._stopper.settle(attempt):
            self._restart_spark(attempt)

    def _restart_spark(self, running: Running) -> None:
        if self._spark is not None:
            log.error(
                "Interrupting the Spark jobs of task %s hangs. Restarting Spark to protect the next task.",
                running.task_id,
            )
            self._spark.restart()

    def _leave_spark(self, spark: Spark, attempt: RunningAttempt, failure: Failure | None) -> Failure | None:
        try:
            if failure is not None and spark.is_lost:
                failure = spark.explain_loss(failure)
            attempt.metrics = spark.metrics(attempt.task_id)
            spark.close_session()
        except Exception:
            log.exception("Cleaning up Spark after task %s failed. Restarting Spark.", attempt.task_id)
            spark.restart()
        return failure

    def _end(
        self, attempt: RunningAttempt, value: Any, error: BaseException | None, failure: Failure | None
    ) -> Outcome:
        if attempt.stop_reason is not None and (error is not None or attempt.is_interrupted):
            return _failed(*_end_stopped(attempt, attempt.stop_reason))
        if isinstance(error, TaskParked):
            return self._end_parked(attempt, error)
        if error is None or failure is None:
            attempt.end("COMPLETED")
            return TaskResult(ok=value)
        unhandled = OperationalErrorCode.UNHANDLED_EXCEPTION
        attempt.log.add_note("ERROR", f"{failure.code or unhandled.value}: {failure.message}")
        attempt.end("FAILED", failure.code or unhandled.value, failure.message)
        if failure.code is not None:
            return _failed(failure.code, failure.message)
        if is_unstorable(error):
            return _failed(unhandled, failure.message)
        # The exception_mapper of the app or of the task may choose the error code.
        raise error

    def _end_parked(self, attempt: RunningAttempt, error: TaskParked) -> Outcome:
        message = str(error)
        attempt.log.add_note("INFO", message)
        attempt.end("FAILED", AWAITING_SIGNAL, message)
        self._parker.add(error.parked)
        return _failed(AWAITING_SIGNAL, message)

    # -- on other threads ----------------------------------------------------------------------------------------

    def _current_log(self) -> AttemptLog | None:
        attempt = self._current
        return None if attempt is None else attempt.log

    def _on_spark_line(self, level: str, line: str) -> None:
        os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))
        attempt = self._current
        if attempt is not None:
            attempt.log.add(level, [line])

    def _before_report(self) -> None:
        self._capture.flush()
        attempt = self._current
        if attempt is not None and self._spark is not None:
            progress = self._spark.poll_progress()
            if progress is not None and not attempt.reports_own_progress:
                attempt.progress = progress

    def _stop(self, running: Running, reason: StopReason) -> None:
        with self._stopping:
            if not running.stop(reason):
                return
        running.log.add_note("WARNING", f"Stopping this {_kind_of(running)} because {reason}.")
        interrupt = None if self._spark is None else partial(self._spark.interrupt, running.task_id)
        threading.Thread(
            target=self._stopper.bring_to_stop,
            args=(running, interrupt, partial(self._report_killed, running, reason)),
            name="horsies-stop",
            daemon=True,
        ).start()

    def _report_killed(self, running: Running, reason: StopReason) -> bool:
        run, attempt = self._chunk, running
        (outcome, code), cause = STOPPED[reason], str(reason)
        if isinstance(attempt, RunningItem):
            if run is None or not run.record_killed(attempt, reason):
                return False
            attempt = attempt.attempt
            if reason is StopReason.CANCELLED:
                # Only the item was cancelled. horsies tries the chunk again if its policy says so.
                outcome, code, cause = "FAILED", OperationalErrorCode.WORKER_CRASHED, "a cancelled item did not stop"
        elif run is not None:
            self._outcomes.flush_once()
        attempt.log.add_note("ERROR", f"The {_kind_of(running)} did not stop. Its process was killed.")
        if not attempt.end(outcome, code_text(code), f"The process of the attempt was killed because {cause}."):
            return False
        self._reporter.end(attempt)
        return True


_child: Child | None = None


def start_child(
    settings: WorkerSettings, *, uses_spark: bool, make_catalog: Callable[[], Catalog | None] = lambda: None
) -> None:
    """Make this process a child of a worker.

    :param make_catalog: finds what the app knows.
    """
    global _child
    _child = Child(settings, uses_spark=uses_spark, make_catalog=make_catalog)
    _child.start()


def run_task(body: Body, *, with_spark: bool, stops_at_good_until: bool) -> Outcome:
    """Run a task. Outside a worker, the body is called directly."""
    assignment = None if _child is None else find_assignment() or _child.find_assignment()
    if _child is None or assignment is None:
        return TaskResult(ok=body(_session_of_caller() if with_spark else None))
    return _child.run(assignment, body, with_spark=with_spark, stops_at_good_until=stops_at_good_until)


def find_addresses(given: Mapping[str, Any]) -> Addresses | None:
    """The addresses of the callbacks in the arguments of the task that runs. Outside a worker, there are none."""
    attempt = None if _child is None else _child.current
    if _child is None or attempt is None:
        return None
    return mint_addresses(_child.database, attempt.task_id, given)


def run_chunk(task: ItemTask, given: Mapping[str, Any]) -> Outcome:
    """Run a chunk, which is only possible in a worker."""
    assignment = None if _child is None else find_assignment() or _child.find_assignment()
    if _child is None or assignment is None:
        return _failed("CHUNKS_UNSUPPORTED", "A chunk can run only in a horsies worker.")
    return _child.run_chunk(assignment, task, given)


def progress(done: int, total: int | None = None, text: str | None = None) -> None:
    """
    Report the progress of the task, which Airflow shows while it runs. Does nothing outside a worker.

    .. code-block:: python

        for number, part in enumerate(parts, start=1):
            load(part)
            progress(number, len(parts), part.name)

    :param done: the amount of work done.
    :param total: the total amount of work; None if it is not known.
    :param text: a description of the current step.
    """
    attempt = None if _child is None else _child.current
    chunk = None if _child is None else _child.chunk
    values = int(done), None if total is None else int(total), None if text is None else short(text)
    if chunk is not None:
        chunk.describe_progress(*values)
    elif attempt is not None:
        attempt.reports_own_progress = True
        attempt.progress = values


def receive(name: str, *, timeout: timedelta | float | None = None) -> Any:
    """
    Wait for a signal on the worker, which does nothing else meanwhile, and return its payload.

    A signal that was sent before the call is returned at once. A later attempt of the task sees again what an earlier
    one has received. For long waits, use :func:`park_until`.

    .. code-block:: python

        answer = receive("confirmed", timeout=timedelta(minutes=1))

    :param name: the name of the signal.
    :param timeout: fail with ``SIGNAL_TIMED_OUT`` after this time, a timedelta or seconds; None waits without end.
    """
    child, attempt = _in_worker("receive()")
    return child.mailbox.receive(attempt, name, timeout)


def park_until(name: str, *, timeout: timedelta | float | None = None) -> Any:
    """
    Return the payload of a signal, or end the attempt and start the task again when the signal arrives.

    The task holds no worker and no connection while it waits. It then starts from its beginning: earlier calls return
    what they returned before, and :func:`checkpoint` keeps what else must not be done twice. It needs a retry policy
    that lets it park: ``RetryPolicy.parking()`` of the sender, or ``parks=True`` of the task.

    .. code-block:: python

        @python_task(app, "reports.publish", parks=True)
        def publish(*, report: str) -> str:
            approval = park_until("approved", timeout=timedelta(days=2))
            return f"{report}, approved by {approval['by']}"

    :param name: the name of the signal.
    :param timeout: fail with ``SIGNAL_TIMED_OUT`` this long after the first call; None waits without end.
    """
    child, attempt = _in_worker("park_until()")
    return child.mailbox.park(attempt, name, timeout)


def park_for(duration: timedelta | float) -> None:
    """
    Wait for a time without holding a worker, as :func:`park_until` does. The time begins with the first attempt.

    :param duration: how long to wait, a timedelta or seconds.
    """
    child, attempt = _in_worker("park_for()")
    child.mailbox.sleep(attempt, duration)


def checkpoint(value: Any) -> None:
    """
    Keep a value for the next attempt; durable when the call returns. It replaces the last one.

    A retry by horsies or by Airflow finds it with :func:`last_checkpoint`; clearing the task instance discards it. Does
    nothing outside a worker.

    .. code-block:: python

        done = last_checkpoint(default=0)
        for number, part in enumerate(parts[done:], start=done + 1):
            load(part)
            checkpoint(number)

    :param value: a JSON value of up to 1 MiB.
    """
    text = encode_payload(value, field="value", max_bytes=MAX_CHECKPOINT_BYTES)
    attempt = None if _child is None else _child.current
    if _child is not None and attempt is not None:
        _child.mailbox.write_checkpoint(attempt, text)


def last_checkpoint(default: Any = None) -> Any:
    """
    The value that :func:`checkpoint` kept last in this life of the task.

    :param default: returned if there is none, and outside a worker.
    """
    attempt = None if _child is None else _child.current
    text = None if _child is None or attempt is None else _child.mailbox.read_checkpoint(attempt)
    return default if text is None else json.loads(text)


def _in_worker(call: str) -> tuple[Child, RunningAttempt]:
    attempt = None if _child is None else _child.current
    if _child is None or attempt is None:
        raise TaskFault("SIGNALS_UNSUPPORTED", f"{call} works only in a task of a horsies worker. Run it there.")
    return _child, attempt


def _end_stopped(attempt: RunningAttempt, reason: StopReason) -> tuple[OutcomeCode | str, str]:
    """End a stopped attempt; returns its error code and message."""
    outcome, code = STOPPED[reason]
    message = f"The attempt was stopped because {reason}."
    attempt.end(outcome, code_text(code), message)
    return code, message


def _kind_of(running: Running) -> str:
    return "item" if isinstance(running, RunningItem) else "attempt"


def _session_of_caller() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _failed(code: Any, message: str) -> Outcome:
    return TaskResult(err=TaskError(error_code=code, message=message))
