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
from collections.abc import Callable
from datetime import UTC, datetime

from airflow_horsies.client.reporting import Claim, ClaimState, EndedAttempt, WorkerClient
from airflow_horsies.db.connection import Database, args_of_url
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError
from airflow_horsies.worker.attempt import RunningAttempt, StopReason

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
WATCH_SECONDS = 1.0
RETRY_SECONDS = 5.0
# How long a task that has ended waits until its last lines are written.
END_SECONDS = 3.0
MAX_UNREPORTED = 100
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
    :param stop: called on this thread when an attempt must stop.
    :param before_report: called on this thread before each report, to flush buffered lines.
    """

    def __init__(
        self,
        database: Database,
        *,
        stop: Callable[[RunningAttempt, StopReason], None],
        before_report: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._client = WorkerClient(database)
        self._stop = stop
        self._before_report = before_report
        self._current: RunningAttempt | None = None
        self._unreported: deque[RunningAttempt] = deque(maxlen=MAX_UNREPORTED)
        self._failures = 0
        self._watched = 0.0
        self._retry_at = 0.0
        self._wake = threading.Event()
        self._tick = threading.Event()

    def start(self) -> None:
        for name, target in (("horsies-reporter", self._serve), ("horsies-clock", self._keep_time)):
            threading.Thread(target=target, name=name, daemon=True).start()

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
        self._unreported.append(attempt)
        self._wake.set()
        self._tick.set()

    def end(self, attempt: RunningAttempt) -> None:
        """Wait until the attempt is written completely, unless that cannot happen soon."""
        # The thread that stopped an attempt may report its end late, when the next attempt already runs.
        if self._current is attempt:
            self._current = None
        self._wake.set()
        if time.monotonic() >= self._retry_at:
            attempt.reported.wait(END_SECONDS)

    @property
    def _pause(self) -> float | None:
        return REPORT_SECONDS if self._current is not None or self._unreported else None

    def _keep_time(self) -> None:
        while True:
            self._tick.wait(self._pause)
            self._tick.clear()
            try:
                self._check_time()
                self._check_connection()
            except Exception:
                log.exception("Checking the time limits of a task failed.")

    def _check_connection(self) -> None:
        asked_at = self._client.asked_at
        if asked_at is not None and time.monotonic() - asked_at > ANSWER_SECONDS:
            log.warning("The database has not answered for %.0f s. Opening a new connection.", ANSWER_SECONDS)
            self._client.asked_at = time.monotonic()
            self._client.hang_up()

    def _serve(self) -> None:
        while True:
            self._wake.wait(self._pause)
            self._wake.clear()
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
        if self._failures >= MAX_FAILURES and self._unreported:
            discarded = self._unreported.popleft()
            discarded.reported.set()
            log.error("Discarded the unwritten logs and progress of task %s.", discarded.task_id)
            self._failures = 0

    def _check_time(self) -> None:
        attempt = self._current
        if attempt is not None:
            reason = attempt.find_passed_limit()
            if reason is not None:
                self._stop(attempt, reason)

    def _report_all(self) -> None:
        while self._unreported:
            attempt = self._unreported[0]
            # Read once: an attempt that ends during its report is reported again.
            outcome = attempt.outcome
            self._report(attempt, outcome)
            if outcome is None:
                break
            if self._unreported and self._unreported[0] is attempt:
                self._unreported.popleft()
            attempt.reported.set()
        attempt_now = self._current
        if attempt_now is not None and attempt_now.number is not None:
            self._watch(attempt_now)

    def _report(self, attempt: RunningAttempt, outcome: str | None) -> None:
        number = attempt.number or self._begin(attempt)
        if number is None:
            return
        new = attempt.log.take(attempt.lines_written + 1)
        attempt.lines_written += sum(len(chunk.lines) for chunk in new)
        attempt.unwritten += new
        values, progress = attempt.progress, attempt.current_progress()
        if not (attempt.unwritten or outcome or progress):
            return
        self._client.report_attempt(
            attempt.task_id,
            number,
            lines=attempt.unwritten,
            progress=progress,
            ended=None if outcome is None else _ended(attempt, outcome),
        )
        attempt.unwritten = []
        if attempt.progress is values:
            attempt.progress = None

    def _begin(self, attempt: RunningAttempt) -> int | None:
        """The number of the attempt; None if the task no longer belongs to this worker."""
        begun = self._client.begin_attempt(
            attempt.claim, hostname=socket.gethostname(), pid=os.getpid(), started_at=attempt.started_at
        )
        if begun is None:
            if attempt.outcome is None:
                self._stop(attempt, StopReason.CLAIM_LOST)
            attempt.log.take(0)
            return None
        attempt.lines_written = begun.lines_written
        attempt.good_until = begun.good_until
        attempt.number = begun.number
        return begun.number

    def _watch(self, attempt: RunningAttempt) -> None:
        if attempt.stop_reason is not None or time.monotonic() - self._watched < WATCH_SECONDS:
            return
        self._watched = time.monotonic()
        reason = REASONS_TO_STOP.get(self._client.read_claim(attempt.claim))
        if reason is not None and attempt.outcome is None:
            self._stop(attempt, reason)


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
