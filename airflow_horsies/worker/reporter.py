"""The thread of a child that writes log lines, progress and outcomes to our tables, and reads stop requests.

It never blocks or fails a task. A failed write is retried, and discarded after several failures. A second thread checks
the time limits, also while the database hangs.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice

from airflow_horsies.client.reporting import (
    AttemptNews,
    Claim,
    ClaimState,
    EndedAttempt,
    StartedAttempt,
    WorkerClient,
)
from airflow_horsies.db.connection import Database, args_of_url
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError
from airflow_horsies.worker.attempt import Running, RunningAttempt, StopReason

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
WATCH_SECONDS = 1.0
RETRY_SECONDS = 5.0
# How long a task that has ended waits until its last lines are written.
END_SECONDS = 3.0
MAX_UNREPORTED = 100
# Successes without lines are small, and written together.
MAX_COMPLETED = 10_000
WRITTEN_AT_ONCE = 200
# How long a process that ends waits until its last reports are written.
FLUSH_SECONDS = 5.0
FLUSH_POLL_SECONDS = 0.01
MAX_FAILURES = 3
CONNECT_SECONDS = 10
# A connection without an answer for this long is replaced: it may be dead, as after a failover. The limit is longer
# than the server's own limits, because a backend that waits for a lock does not notice that its client is gone.
ANSWER_SECONDS = 30.0
TCP_USER_TIMEOUT_MS = 30_000
REASONS_TO_STOP = {ClaimState.CANCELLED: StopReason.CANCELLED, ClaimState.LOST: StopReason.CLAIM_LOST}


class Reporter:
    """
    :param database: horsies' database.
    :param stop: called on this thread when an attempt or an item must stop.
    :param before_report: called on this thread before each report, to flush buffered lines.
    """

    def __init__(
        self,
        database: Database,
        *,
        stop: Callable[[Running, StopReason], None],
        before_report: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._client = WorkerClient(database)
        self._clients = [self._client]
        self._stop = stop
        self._before_report = before_report
        self._current: RunningAttempt | None = None
        # Ended attempts with something to tell, and those of which only the success is known.
        self._unreported: deque[RunningAttempt] = deque(maxlen=MAX_UNREPORTED)
        self._completed: deque[RunningAttempt] = deque(maxlen=MAX_COMPLETED)
        self._written: Sequence[RunningAttempt] = ()
        self._handing_over = threading.Lock()
        self._failures = 0
        self._watched = 0.0
        self._retry_at = 0.0
        self._due_at = 0.0
        self._is_ending = False
        self._wake = _Bell()
        self._tick = _Bell()

    def start(self) -> None:
        for name, target in (("horsies-reporter", self._serve), ("horsies-clock", self._keep_time)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def make_client(self, kind: type[WorkerClient] = WorkerClient) -> WorkerClient:
        """A client with a connection of its own, which the clock replaces if the database does not answer."""
        client = kind(self._database)
        self._clients.append(client)
        return client

    def find_claim(self) -> Claim | None:
        """The claim of this process in the table; None if there is none. Called before an attempt begins."""
        client = WorkerClient(self._database)
        try:
            return client.find_claim(hostname=socket.gethostname(), pid=os.getpid())
        except HorsiesError as error:
            log.warning("Looking up the task of this process failed: %s", error)
            return None
        finally:
            client.close()

    def begin(self, attempt: RunningAttempt) -> None:
        self._current = attempt
        self._wake.ring_if_idle()
        self._tick.ring_if_idle()

    def end(self, attempt: RunningAttempt) -> None:
        """Hand over the end of an attempt; wait until it is written, unless nobody needs it or it cannot be soon."""
        # The thread that stopped an attempt may report its end late, when the next attempt already runs.
        if self._current is attempt:
            self._current = None
        if self._hand_over(attempt):
            self._wake.ring_if_idle()
            return
        self._wake.ring()
        if time.monotonic() >= self._retry_at:
            attempt.reported.wait(END_SECONDS)

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what is left, within a limited time; called when the process ends."""
        gives_up_at = time.monotonic() + seconds
        self._is_ending = True
        self._wake.ring()
        while self._is_behind and time.monotonic() < gives_up_at:
            time.sleep(FLUSH_POLL_SECONDS)
        if self._is_behind:
            log.error(
                "The reports of %s attempts were not written before this process ended. horsies has their outcomes.",
                len(self._completed) + len(self._unreported),
            )

    def _hand_over(self, attempt: RunningAttempt) -> bool:
        """Queue the end of an attempt, once; whether nobody waits for its report."""
        with self._handing_over:
            is_first, attempt.is_handed_over = not attempt.is_handed_over, True
        if attempt.is_refused:
            attempt.reported.set()
        elif is_first and attempt.is_silent_success and attempt.number is None:
            self._due_at = self._due_at if self._completed else time.monotonic() + REPORT_SECONDS
            self._keep(self._completed, attempt)
            if self._is_due:
                self._wake.ring()
        elif is_first:
            self._keep(self._unreported, attempt)
        return attempt.is_silent_success

    def _keep(self, waiting: deque[RunningAttempt], attempt: RunningAttempt) -> None:
        if len(waiting) == waiting.maxlen:
            log.error("Discarded the unwritten report of task %s: too many are waiting.", waiting[0].task_id)
        waiting.append(attempt)

    @property
    def _is_due(self) -> bool:
        """Whether to write the successes now: others may follow soon, and one transaction is enough for all."""
        return self._is_ending or len(self._completed) >= WRITTEN_AT_ONCE or time.monotonic() >= self._due_at

    @property
    def _is_behind(self) -> bool:
        return bool(self._unreported or self._completed)

    @property
    def _pause(self) -> float | None:
        return REPORT_SECONDS if self._current is not None or self._is_behind else None

    def _keep_time(self) -> None:
        while True:
            self._tick.wait(lambda: self._pause)
            try:
                self._check_time()
                self._check_connection()
            except Exception:
                log.exception("Checking the time limits of a task failed.")

    def _check_connection(self) -> None:
        for client in self._clients:
            asked_at = client.asked_at
            if asked_at is not None and time.monotonic() - asked_at > ANSWER_SECONDS:
                log.warning("The database has not answered for %.0f s. Opening a new connection.", ANSWER_SECONDS)
                client.asked_at = time.monotonic()
                client.hang_up()

    def _serve(self) -> None:
        while True:
            self._wake.wait(lambda: self._pause)
            try:
                self._before_report()
                if time.monotonic() < self._retry_at:
                    time.sleep(REPORT_SECONDS)
                    continue
                self._report_all()
                self._failures = 0
            except TRANSIENT_ERRORS as error:
                log.warning("Writing logs and progress failed and is tried again: %s", error)
                self._retry_at = time.monotonic() + RETRY_SECONDS
            except Exception as error:
                self._discard_after_failures(error)

    def _discard_after_failures(self, error: Exception) -> None:
        """An attempt that is refused repeatedly must not block the attempts after it."""
        log.warning("Writing logs and progress failed: %s", error, exc_info=not isinstance(error, HorsiesError))
        self._failures += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._client.forget_schema()
        if self._failures >= MAX_FAILURES:
            self._failures = 0
            for attempt in self._written:
                self._discard(attempt)

    def _discard(self, attempt: RunningAttempt) -> None:
        attempt.is_refused = True
        for waiting in (self._unreported, self._completed):
            if waiting and waiting[0] is attempt:
                waiting.popleft()
        if attempt.outcome is not None:
            attempt.reported.set()
        log.error("Discarded the unwritten logs and progress of task %s.", attempt.task_id)

    def _check_time(self) -> None:
        attempt = self._current
        for running in () if attempt is None else (attempt, attempt.item):
            reason = None if running is None else running.find_passed_limit()
            if running is not None and reason is not None:
                self._stop(running, reason)

    def _report_all(self) -> None:
        while self._unreported:
            self._report_ended(self._unreported[0])
        attempt = self._current
        if attempt is not None and not attempt.is_refused:
            if attempt.number is not None or attempt.has_something_to_report:
                self._report(attempt, None)
            if attempt.number is not None:
                self._watch(attempt)
        while self._completed and self._is_due:
            self._record_completed()

    def _report_ended(self, attempt: RunningAttempt) -> None:
        self._report(attempt, attempt.outcome)
        _remove(self._unreported, [attempt])

    def _record_completed(self) -> None:
        """Write many at once. horsies knows these successes, so nothing waits for them."""
        self._written = completed = list(islice(self._completed, WRITTEN_AT_ONCE))
        self._client.record_completed([(_started(each), each.finished_at or each.started_at) for each in completed])
        _remove(self._completed, completed)

    def _report(self, attempt: RunningAttempt, outcome: str | None) -> None:
        self._written = [attempt]
        new = attempt.log.take(attempt.lines_written + 1)
        attempt.lines_written += sum(len(chunk.lines) for chunk in new)
        attempt.unwritten += new
        values = attempt.progress
        news = AttemptNews(
            lines=attempt.unwritten,
            progress=attempt.current_progress(),
            ended=None if outcome is None else _ended(attempt, outcome),
        )
        if attempt.number is None:
            self._begin(attempt, news)
        elif news:
            self._client.report_attempt(attempt.task_id, attempt.number, news)
        attempt.unwritten = []
        if attempt.progress is values:
            attempt.progress = None

    def _begin(self, attempt: RunningAttempt, news: AttemptNews) -> None:
        """Write the first report; nothing if the task no longer belongs to this worker."""
        begun = self._client.begin_attempt(_started(attempt), news)
        if begun is not None:
            attempt.lines_written += begun.lines_written
            attempt.good_until = begun.good_until
            attempt.number = begun.number
        reason = REASONS_TO_STOP.get(ClaimState.LOST if begun is None else begun.state)
        if reason is not None and attempt.outcome is None:
            self._stop(attempt, reason)

    def _watch(self, attempt: RunningAttempt) -> None:
        if attempt.stop_reason is not None or time.monotonic() - self._watched < WATCH_SECONDS:
            return
        self._watched = time.monotonic()
        reason = REASONS_TO_STOP.get(self._client.read_claim(attempt.claim))
        if reason is not None and attempt.outcome is None:
            self._stop(attempt, reason)


class _Bell:
    """Wakes a thread. While tasks follow each other, a thread that wakes by itself soon is not woken for each."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._is_idle = False

    def ring(self) -> None:
        self._event.set()

    def ring_if_idle(self) -> None:
        if self._is_idle:
            self._event.set()

    def wait(self, pause: Callable[[], float | None]) -> None:
        """Wait for the bell or the pause. Whoever rings after the pause was asked for sees an idle thread."""
        self._is_idle = True
        seconds = pause()
        self._is_idle = seconds is None
        self._event.wait(seconds)
        self._is_idle = False
        self._event.clear()


def _remove(waiting: deque[RunningAttempt], reported: Sequence[RunningAttempt]) -> None:
    """Remove the first ones, unless a full queue has dropped them meanwhile."""
    for attempt in reported:
        if waiting and waiting[0] is attempt:
            waiting.popleft()
        attempt.reported.set()


def _started(attempt: RunningAttempt) -> StartedAttempt:
    return StartedAttempt(
        claim=attempt.claim, hostname=socket.gethostname(), pid=os.getpid(), started_at=attempt.started_at
    )


def _ended(attempt: RunningAttempt, outcome: str) -> EndedAttempt:
    return EndedAttempt(
        finished_at=attempt.finished_at or datetime.now(UTC),
        outcome=outcome,
        error_code=attempt.error_code,
        error_message=attempt.error_message,
        metrics=attempt.metrics,
    )


def database_of(url: str) -> Database:
    """The database of a worker's URL, with the connection settings of the reporter."""
    connect_args = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "airflow_horsies worker",
        "keepalives_idle": 30,
        "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
        **args_of_url(url),
        # A pooler in transaction mode does not support prepared statements.
        "prepare_threshold": None,
    }
    return Database(connect_args=connect_args, listen_args=connect_args)
