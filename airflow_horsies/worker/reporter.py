"""The thread of a child that speaks with our tables: lines, progress and ends go out, requests to stop come in.

It never blocks and never fails a task: what cannot be written is tried again, and given up in the end. A second thread
keeps the time, which goes on while the database hangs.
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
from airflow_horsies.exceptions import PASSING_ERRORS, HorsiesError
from airflow_horsies.worker.attempt import RunningAttempt, StopReason

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
WATCH_SECONDS = 1.0
RETRY_SECONDS = 5.0
# How long a task that has ended waits for its last lines to be written.
END_SECONDS = 3.0
MAX_UNREPORTED = 100
MAX_FAILURES = 3
CONNECT_SECONDS = 10
# A database that says nothing for so long is not waited for: the connection may lead nowhere, as after a failover.
# Longer than the server's own limits: a backend that waits for a lock does not notice that its client is gone.
ANSWER_SECONDS = 30.0
TCP_USER_TIMEOUT_MS = 30_000
REASONS_TO_STOP = {ClaimState.CANCELLED: StopReason.CANCELLED, ClaimState.LOST: StopReason.CLAIM_LOST}


class Reporter:
    """
    :param database: horsies' database.
    :param stop: what is called, on this thread, when an attempt must stop.
    :param before_report: called on this thread before each report, as lines may sit in buffers.
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
        self._quiet_until = 0.0
        self._wake = threading.Event()
        self._tick = threading.Event()

    def start(self) -> None:
        for name, target in (("horsies-reporter", self._serve), ("horsies-clock", self._keep_time)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def find_claim(self) -> Claim | None:
        """What this process runs, by the table; None where nobody can say. Called before an attempt begins."""
        client = WorkerClient(self._database)
        try:
            return client.find_claim(hostname=socket.gethostname(), pid=os.getpid())
        except HorsiesError as error:
            log.warning("The task that this process runs cannot be looked up: %s", error)
            return None
        finally:
            client.close()

    def begin(self, attempt: RunningAttempt) -> None:
        self._current = attempt
        self._unreported.append(attempt)
        self._wake.set()
        self._tick.set()

    def end(self, attempt: RunningAttempt) -> None:
        """Returns when everything about the attempt is written, or cannot be written soon."""
        # A late end, told by the thread that stopped the attempt, says nothing of the one that runs now.
        if self._current is attempt:
            self._current = None
        self._wake.set()
        if time.monotonic() >= self._quiet_until:
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
                self._check_answer()
            except Exception:
                log.exception("The time of a task could not be looked at")

    def _check_answer(self) -> None:
        asked_at = self._client.asked_at
        if asked_at is not None and time.monotonic() - asked_at > ANSWER_SECONDS:
            log.warning("The database has not answered for %.0f s; the connection is made anew", ANSWER_SECONDS)
            self._client.asked_at = time.monotonic()
            self._client.hang_up()

    def _serve(self) -> None:
        while True:
            self._wake.wait(self._pause)
            self._wake.clear()
            try:
                self._before_report()
                if time.monotonic() < self._quiet_until:
                    time.sleep(REPORT_SECONDS)
                    continue
                self._report_all()
                self._failures = 0
            except PASSING_ERRORS as error:
                log.warning("Logs and progress are not written for now, trying again: %s", error)
                self._quiet_until = time.monotonic() + RETRY_SECONDS
            except Exception as error:
                self._give_up_in_the_end(error)

    def _give_up_in_the_end(self, error: Exception) -> None:
        """What is refused again and again must not keep the attempts behind it from being written."""
        log.warning("Logs and progress are not written: %s", error, exc_info=not isinstance(error, HorsiesError))
        self._failures += 1
        self._quiet_until = time.monotonic() + RETRY_SECONDS
        if self._failures >= MAX_FAILURES and self._unreported:
            given_up = self._unreported.popleft()
            given_up.reported.set()
            log.error("What was not written of task %s is given up", given_up.task_id)
            self._failures = 0

    def _check_time(self) -> None:
        attempt = self._current
        if attempt is not None:
            reason = attempt.reason_to_stop_by_now()
            if reason is not None:
                self._stop(attempt, reason)

    def _report_all(self) -> None:
        while self._unreported:
            attempt = self._unreported[0]
            # Asked once: one that ends while it is reported on has more to tell.
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
        told, progress = attempt.progress, attempt.current_progress()
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
        if attempt.progress is told:
            attempt.progress = None

    def _begin(self, attempt: RunningAttempt) -> int | None:
        """The attempt's number; None where it is no longer this worker's, and nobody could say which it was."""
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
    """As a worker has it, in the terms of our own connections."""
    connect_args = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "airflow_horsies worker",
        "keepalives_idle": 30,
        "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
        **args_of_url(url),
        # A pooler in transaction mode has no prepared statements.
        "prepare_threshold": None,
    }
    return Database(connect_args=connect_args, listen_args=connect_args)
