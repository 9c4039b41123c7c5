"""Signals in tasks: wait on the worker, or park and hold no worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from airflow_horsies.borrowed.horsies import calculate_retry_delay
from airflow_horsies.client.mailbox import Answer, MailboxClient, ParkedTask, ParkingTask, Verdict, Wait
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.signals import (
    AWAITING_SIGNAL,
    SIGNAL_TIMED_OUT,
    TIMER,
    require_signal_name,
    require_timeout,
)
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError, LedgerOutdated
from airflow_horsies.worker.attempt import Running, RunningAttempt, StopReason
from airflow_horsies.worker.errors import TaskFault, short
from airflow_horsies.worker.stopping import TaskStopped

T = TypeVar("T")

POLL_SECONDS = 0.25
MAX_POLL_SECONDS = 1.0
RETRY_SECONDS = 1.0
# How long a question waits for a database that is away.
GIVE_UP_SECONDS = 60.0
JITTER_FACTOR = 1.25
# A policy that waits longer than this before a retry is of no use where a worker dies while a task parks.
MAX_INTERVAL_SECONDS = 365 * 86_400.0
MAKE_PARKABLE = (
    "Send it with retry_policy=RetryPolicy.parking(), or with_parking() of another policy; for workflows, register it "
    "with parks=True. Or wait on the worker with receive()."
)


class TaskParked(BaseException):
    """Raised inside the task's code to end an attempt that waits. It passes ``except Exception``."""

    def __init__(self, message: str, parked: ParkedTask) -> None:
        super().__init__(message)
        self.parked = parked


class Mailbox:
    """The signals and checkpoints of the tasks of a child, over one connection that is opened on first use.

    :param make_client: makes the client.
    :param stop: called if the task no longer belongs to this worker.
    """

    def __init__(
        self,
        make_client: Callable[[type[MailboxClient]], WorkerClient],
        stop: Callable[[Running, StopReason], None],
    ) -> None:
        self._make_client = make_client
        self._stop = stop
        self._client: MailboxClient | None = None
        self._asking = threading.RLock()
        # Of the current attempt.
        self._attempt: RunningAttempt | None = None
        self._targets: tuple[str, ...] = ()
        self._received: dict[str, int] = {}

    def receive(self, attempt: RunningAttempt, name: str, timeout: timedelta | float | None) -> Any:
        """Wait on the worker."""
        wait = self._wait_for(attempt, require_signal_name(name))
        seconds = require_timeout(timeout)
        return self._receive(attempt, wait, seconds, f"within {seconds:g} s" if seconds is not None else "")

    def park(self, attempt: RunningAttempt, name: str, timeout: timedelta | float | None) -> Any:
        """Return the signal, or end the attempt."""
        return self._park(attempt, self._wait_for(attempt, require_signal_name(name)), require_timeout(timeout))

    def sleep(self, attempt: RunningAttempt, duration: timedelta | float) -> None:
        """Return if the time is over, or end the attempt."""
        self._park(attempt, self._wait_for(attempt, TIMER), require_timeout(duration) or 0.0)
        self._count(TIMER)

    def write_checkpoint(self, attempt: RunningAttempt, value: str) -> None:
        item = None if attempt.item is None else attempt.item.number
        if not self._ask(attempt, lambda client: client.write_checkpoint(attempt.claim, item, value)):
            self._lose(attempt)

    def read_checkpoint(self, attempt: RunningAttempt) -> str | None:
        item = None if attempt.item is None else attempt.item.number
        return self._ask(attempt, lambda client: client.read_checkpoint(attempt.task_id, item))

    # ------------------------------------------------------------------------------------------------------------------

    def _wait_for(self, attempt: RunningAttempt, name: str) -> Wait:
        if attempt.item is not None:
            raise TaskFault(
                "SIGNALS_UNSUPPORTED",
                "An item of a chunk cannot wait for a signal. Send its items as tasks of their own, without chunks.",
            )
        if self._attempt is not attempt:
            self._targets = self._ask(attempt, lambda client: client.find_targets(attempt.task_id))
            self._attempt, self._received = attempt, {}
        return Wait(claim=attempt.claim, targets=self._targets, name=name, occurrence=self._received.get(name, 0) + 1)

    def _count(self, name: str) -> None:
        self._received[name] = self._received.get(name, 0) + 1

    def _receive(self, attempt: RunningAttempt, wait: Wait, seconds: float | None, limit: str) -> Any:
        gives_up_at = None if seconds is None else time.monotonic() + seconds
        answer = self._ask(attempt, lambda client: client.receive(wait))
        pause = POLL_SECONDS
        while answer.verdict is Verdict.NOTHING:
            left = None if gives_up_at is None else gives_up_at - time.monotonic()
            if left is not None and left <= 0:
                raise _timed_out(wait, limit)
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.2, MAX_POLL_SECONDS)
            if self._ask(attempt, lambda client: client.has_message(wait)):
                answer = self._ask(attempt, lambda client: client.receive(wait))
        return self._open(attempt, wait, answer)

    def _park(self, attempt: RunningAttempt, wait: Wait, seconds: float | None) -> Any:
        answer = self._ask(
            attempt, lambda client: client.park(wait, timeout_seconds=seconds, find_interval=_find_interval)
        )
        match answer.verdict:
            case Verdict.PARKED:
                parked = ParkedTask(
                    wait=wait, attempt=answer.attempt, due_at=answer.due_at, seconds_left=answer.seconds_left
                )
                raise TaskParked(_describe_wait(wait, answer), parked)
            case Verdict.WAIT_IN_PLACE:
                return self._wait_in_place(attempt, wait, answer)
            case Verdict.NOT_ALLOWED:
                raise TaskFault(
                    "PARKING_NOT_POSSIBLE",
                    f"The task cannot park: its retry policy does not retry {AWAITING_SIGNAL}. {MAKE_PARKABLE}",
                )
            case Verdict.TIMED_OUT if wait.is_timer:
                return None
            case Verdict.TIMED_OUT:
                raise _timed_out(wait, "in time")
        return self._open(attempt, wait, answer)

    def _wait_in_place(self, attempt: RunningAttempt, wait: Wait, answer: Answer) -> Any:
        """horsies refuses a retry that is not before good_until, so the task waits on the worker for the short rest."""
        attempt.log.add_note("INFO", "Waiting on the worker, because good_until is before the next retry.")
        until_good = max(answer.until_good or 0.0, 0.0)
        is_cut = answer.seconds_left is None or answer.seconds_left > until_good
        seconds = until_good if answer.seconds_left is None else min(until_good, answer.seconds_left)
        if wait.is_timer:
            time.sleep(seconds)
        else:
            try:
                return self._receive(attempt, wait, seconds, "in time")
            except TaskFault as fault:
                if fault.code != SIGNAL_TIMED_OUT or not is_cut:
                    raise
        if is_cut:
            raise TaskFault(
                "GOOD_UNTIL_PASSED", f"Its good_until passed while the task waited for {_what(wait)}. Set a later one."
            )
        return None

    def _open(self, attempt: RunningAttempt, wait: Wait, answer: Answer) -> Any:
        if answer.verdict is not Verdict.RECEIVED or answer.payload is None:
            self._lose(attempt)
        self._count(wait.name)
        return json.loads(answer.payload or "null")

    def _lose(self, attempt: RunningAttempt) -> None:
        """End the attempt: the task was cancelled, or belongs to another worker."""
        self._stop(attempt, StopReason.CLAIM_LOST)
        attempt.is_interrupted = True
        raise TaskStopped

    def _ask(self, attempt: RunningAttempt, ask: Callable[[MailboxClient], T]) -> T:
        """Ask again while the database is away, up to a limit."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                with self._asking:
                    return ask(self._connected())
            except LedgerOutdated as error:
                raise TaskFault("SIGNALS_UNSUPPORTED", str(error)) from None
            except HorsiesError as error:
                if not isinstance(error, TRANSIENT_ERRORS) or time.monotonic() > give_up:
                    raise TaskFault(
                        "SIGNALS_UNAVAILABLE", short(f"Signals and checkpoints could not be read or written: {error}")
                    ) from error
                time.sleep(RETRY_SECONDS)
            except Exception:
                raise
            except BaseException:
                # Interrupted while it waited for an answer, which would be taken for that to the next question.
                if self._client is not None:
                    self._client.close()
                raise

    def _connected(self) -> MailboxClient:
        if self._client is None:
            client = self._make_client(MailboxClient)
            assert isinstance(client, MailboxClient)  # noqa: S101 - narrows the type only
            self._client = client
        self._client.require_messages()
        return self._client


def _find_interval(task: ParkingTask) -> float:
    """The longest time until horsies retries the attempt, in seconds, unless the task is made due earlier."""
    policy = dict(task.policy)
    try:
        seconds = calculate_retry_delay(task.attempt, {**policy, "jitter": False})
    except OverflowError:
        seconds = float("inf")
    if seconds > MAX_INTERVAL_SECONDS:
        raise TaskFault(
            "PARKING_NOT_POSSIBLE",
            f"The task cannot park: after {task.attempt} attempts, its exponential retry policy waits for years before "
            "the next. Set max_delay_seconds of the policy.",
        )
    return seconds * JITTER_FACTOR if policy.get("jitter", True) else seconds


def _timed_out(wait: Wait, limit: str) -> TaskFault:
    return TaskFault(
        SIGNAL_TIMED_OUT, f"The signal {wait.name!r} did not arrive {limit}. Send it earlier, or wait longer."
    )


def _what(wait: Wait) -> str:
    return "a time" if wait.is_timer else f"the signal {wait.name!r}"


def _describe_wait(wait: Wait, answer: Answer) -> str:
    until = "" if answer.due_at is None else f" until {answer.due_at:%Y-%m-%d %H:%M:%S %Z}"
    return f"Parked{until}." if wait.is_timer else f"Parked: waits for the signal {wait.name!r}{until}."
