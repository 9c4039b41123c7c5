"""What tasks on a worker ask for: signals, waits and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from airflow_horsies.client.reporting import Claim, WorkerClient
from airflow_horsies.core.signals import AWAITING_SIGNAL, LONGEST_PARKED, TIMER
from airflow_horsies.db.statement import Script
from airflow_horsies.ledger import checkpoints, messages
from airflow_horsies.wire import parking
from airflow_horsies.wire.parking import ParkingTask

__all__ = ["Answer", "MailboxClient", "ParkedTask", "ParkingTask", "Settled", "Verdict", "Wait"]

# The interval of the policy before a retry, in seconds: from the attempt that ends and the policy of the task.
FindInterval = Callable[[ParkingTask], float]


class Verdict(Enum):
    """What became of a request for a signal."""

    RECEIVED = auto()
    # Nothing has arrived.
    NOTHING = auto()
    PARKED = auto()
    TIMED_OUT = auto()
    # horsies would refuse the retry: the task must wait on its worker.
    WAIT_IN_PLACE = auto()
    # The policy of the task does not retry AWAITING_SIGNAL.
    NOT_ALLOWED = auto()
    CLAIM_LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait of a task.

    :param targets: the task, and the workflows it is in.
    :param occurrence: which signal of that name it is to the task, from 1.
    """

    claim: Claim
    targets: tuple[str, ...]
    name: str
    occurrence: int = 1

    @property
    def is_timer(self) -> bool:
        return self.name == TIMER


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    :param payload: of the signal, as JSON.
    :param attempt: the number of the attempt that parks.
    :param seconds_left: until the wait ends; None if it has no end.
    :param until_good: seconds until ``good_until``.
    """

    verdict: Verdict
    payload: str | None = None
    attempt: int = 0
    seconds_left: float | None = None
    until_good: float | None = None
    due_at: datetime | None = None


class Settled(Enum):
    """Whether a parked task has the time to resume that it asked for."""

    NOT_YET = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTask:
    """An attempt that ends to park, and when its task resumes by itself."""

    wait: Wait
    attempt: int
    due_at: datetime | None
    seconds_left: float | None
    queue: str = ""


class MailboxClient(WorkerClient):
    """The connection of a worker child for signals and checkpoints."""

    _supports_messages = False

    def require_messages(self) -> None:
        """LedgerOutdated if the tables of this package are too old."""
        if not self._supports_messages:
            self._known_wire()
            self._run(messages.require_messages)
            self._supports_messages = True

    def find_targets(self, task_id: str) -> tuple[str, ...]:
        """The ids whose signals a task receives: its own, and those of the workflows it is in."""

        def find() -> Script[tuple[str, ...]]:
            return (task_id, *(yield from parking.find_workflows_of_task(task_id)))

        return self._run(find)

    def has_message(self, wait: Wait) -> bool:
        """Whether a signal waits; without a lock."""
        return self._run(lambda: messages.has_message(wait.targets, wait.name))

    def receive(self, wait: Wait) -> Answer:
        """Take the next signal of that name, or see again what an earlier attempt took."""

        def take() -> Script[Answer]:
            task, payload = yield from _take(wait)
            if payload is not None:
                return Answer(verdict=Verdict.RECEIVED, payload=payload)
            return Answer(verdict=Verdict.CLAIM_LOST if task is None else Verdict.NOTHING)

        return self._run(take)

    def park(self, wait: Wait, *, timeout_seconds: float | None, find_interval: FindInterval) -> Answer:
        """Take the next signal, or record that the attempt ends to wait for it. The rest is done by horsies, which
        retries the task."""

        def park() -> Script[Answer]:
            task, payload = yield from _take(wait)
            if payload is not None:
                return Answer(verdict=Verdict.RECEIVED, payload=payload)
            if task is None:
                return Answer(verdict=Verdict.CLAIM_LOST)
            if not task.retries(AWAITING_SIGNAL):
                return Answer(verdict=Verdict.NOT_ALLOWED)
            return (yield from _begin_wait(wait, task, timeout_seconds, find_interval(task)))

        return self._run(park)

    def settle(self, parked: ParkedTask) -> tuple[Settled, str | None]:
        """Give a task that has parked the time to resume: now if its signal has arrived meanwhile. Also returns its
        queue, if it is parked."""
        wait = parked.wait
        task_id, attempt = wait.claim.task_id, parked.attempt

        def settle() -> Script[tuple[Settled, str | None]]:
            yield from messages.lock_signal(wait.targets, wait.name)
            arrived = not wait.is_timer and (yield from messages.has_message(wait.targets, wait.name))
            row = yield from parking.lock_parked(task_id)
            if row is None:
                return Settled.DONE, None
            retries = int(row["retry_count"] or 0)
            if row["status"] in ("RUNNING", "CLAIMED") and retries == attempt - 1:
                return Settled.NOT_YET, None
            if row["status"] != "PENDING" or retries != attempt:
                return Settled.DONE, None
            if arrived:
                yield from parking.resume_parked(task_id, attempt)
                return Settled.DONE, None
            yield from parking.postpone_parked(task_id, attempt, _resume_at(parked))
            return Settled.DONE, row["queue_name"]

        return self._run(settle)

    def wake_workers(self, task_id: str, queue: str) -> None:
        """A hint that a parked task is due."""
        self._run(lambda: parking.wake_workers(task_id, queue))

    def write_checkpoint(self, claim: Claim, item: int | None, value: str) -> bool:
        """Durable when it returns; False if the claim is lost, and nothing was written."""

        def write() -> Script[bool]:
            yield from checkpoints.lock_table()
            task = yield from parking.lock_parking(claim.task_id, claim.worker_id, claim.claimed_at)
            if task is None:
                return False
            yield from checkpoints.write_checkpoint(claim.task_id, item, attempt=task.attempt, value=value)
            return True

        return self._run(write)

    def read_checkpoint(self, task_id: str, item: int | None) -> str | None:
        return self._run(lambda: checkpoints.read_checkpoint(task_id, item))


def _take(wait: Wait) -> Script[tuple[ParkingTask | None, str | None]]:
    """The task, if the claim is held, and the signal, if there is one."""
    claim = wait.claim
    yield from messages.lock_signal(wait.targets, wait.name)
    task = yield from parking.lock_parking(claim.task_id, claim.worker_id, claim.claimed_at)
    if task is None:
        return None, None
    if wait.is_timer:
        return task, None
    payload = yield from messages.read_consumed(claim.task_id, wait.name, wait.occurrence)
    if payload is None:
        payload = yield from messages.take_message(
            claim.task_id, wait.targets, wait.name, occurrence=wait.occurrence, attempt=task.attempt
        )
    return task, payload


def _begin_wait(
    wait: Wait, task: ParkingTask, timeout_seconds: float | None, interval_seconds: float
) -> Script[Answer]:
    task_id = wait.claim.task_id
    begun = yield from messages.begin_wait(
        task_id,
        wait.targets,
        wait.name,
        occurrence=wait.occurrence,
        attempt=task.attempt,
        timeout_seconds=timeout_seconds,
    )
    if begun.is_over:
        return Answer(verdict=Verdict.TIMED_OUT)
    until_good = None if task.good_until is None else (task.good_until - task.now).total_seconds()
    answer = Answer(
        verdict=Verdict.PARKED,
        attempt=task.attempt,
        seconds_left=begun.seconds_left,
        until_good=until_good,
        due_at=begun.due_at,
    )
    if until_good is not None and until_good <= interval_seconds:
        return Answer(verdict=Verdict.WAIT_IN_PLACE, seconds_left=begun.seconds_left, until_good=until_good)
    parked = yield from messages.count_parked(task_id, wait.name, wait.occurrence)
    retries = task.policy.get("max_retries")
    sent = retries if isinstance(retries, int) else task.max_retries
    yield from parking.allow_parking(task_id, sent + parked)
    return answer


def _resume_at(parked: ParkedTask) -> datetime:
    latest = datetime.now().astimezone() + LONGEST_PARKED
    return latest if parked.due_at is None else parked.due_at
