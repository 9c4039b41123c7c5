"""The synchronous wait: listen, read, wait with a bound, read again.

The hub does the same for an event loop; ``tests/integration/test_wait.py`` checks both against the same rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol, TypeVar

from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.core.task import AttemptRecord, TaskState, TaskView
from airflow_horsies.core.workflow import WorkflowStatus
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.db.listener import TASK_DONE, WORKFLOW_DONE, Channel, Listener
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError, WaitTimeout
from airflow_horsies.ledger.cancelling import CANCELS_AT_ONCE
from airflow_horsies.wire import workflows
from airflow_horsies.wire.known import WireScript
from airflow_horsies.wire.reading import read_waited_for

T = TypeVar("T")
log = logging.getLogger(__name__)

POLL_SECONDS = 30.0
# The interval of reads for followers of tasks.
FOLLOW_SECONDS = 2.0
FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 15.0
# How long to wait for the worker of a cancelled task.
STOP_SECONDS = 3.0
STOP_POLL_SECONDS = 0.25
# Pages of requested cancels per full read.
MOST_REQUEST_PAGES = 10


class Waiting(Protocol):
    """The part of a client that the wait uses."""

    @property
    def settings(self) -> ClientSettings: ...
    def read(self, make_script: WireScript[T], /) -> T: ...
    def read_tasks(self, task_ids: Sequence[str], /) -> dict[str, TaskView]: ...
    def read_outlines(self, task_ids: Sequence[str], /) -> dict[str, TaskView]: ...
    def read_attempts(self, task_ids: Collection[str], /) -> dict[str, tuple[AttemptRecord, ...]]: ...
    def carry_out_requests(self) -> int: ...


def wait(
    client: Waiting,
    wanted: Sequence[str],
    *,
    timeout_seconds: float | None,
    poll_seconds: float,
    until: Callable[[Mapping[str, TaskState]], bool] | None,
    meanwhile: Callable[[], None] | None,
    whole: bool = True,
) -> list[TaskView]:
    """Return the tasks in the given order, once all have ended or ``until`` is true for the states of the ended ones;
    WaitTimeout after the timeout.

    :param whole: with arguments and results.
    """
    remaining = _RemainingTasks(client, wanted, until)
    _wait(client, remaining, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds, meanwhile=meanwhile)
    found = client.read_tasks(wanted) if whole else client.read_outlines(wanted)
    return [found[task_id] for task_id in wanted]


def wait_workflows(
    client: Waiting,
    wanted: Sequence[str],
    *,
    timeout_seconds: float | None,
    poll_seconds: float,
    until: Callable[[Mapping[str, WorkflowStatus]], bool] | None,
    meanwhile: Callable[[], None] | None,
) -> list[WorkflowStatus]:
    """As wait, for workflows; ``until`` is asked after each change, with what is known of all of them."""
    remaining = _RemainingWorkflows(client, wanted, until)
    _wait(client, remaining, timeout_seconds=timeout_seconds, poll_seconds=poll_seconds, meanwhile=meanwhile)
    return [remaining.known[workflow_id] for workflow_id in wanted]


def _wait(
    client: Waiting,
    remaining: _Remaining,
    *,
    timeout_seconds: float | None,
    poll_seconds: float,
    meanwhile: Callable[[], None] | None,
) -> None:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
    while remaining.ids:
        try:
            with ExitStack() as opened:
                # Listen first and read second, so that no end in between is missed.
                database = client.settings.database
                listener = (
                    opened.enter_context(Listener(database, remaining.channel)) if client.settings.listens else None
                )
                rest = _Rest(listener, meanwhile)
                remaining.read(remaining.ids)
                read_all_at = time.monotonic() + poll_seconds
                while remaining.ids:
                    left = max(read_all_at - time.monotonic(), 0)
                    notified = rest.until_notified(remaining.concerned, _pause(left, deadline, remaining))
                    # Only the notified ones: reading all of a large batch at every end would take too long.
                    if not notified or time.monotonic() >= read_all_at:
                        _carry_out_requests(client)
                        notified, read_all_at = set(remaining.ids), time.monotonic() + poll_seconds
                    remaining.read(notified)
                    backoff.reset()
        except TRANSIENT_ERRORS as error:
            time.sleep(_retry_pause(error, backoff.next_pause(), deadline))


def wait_timeout(waiting: Collection[str]) -> WaitTimeout:
    return WaitTimeout(
        f"{len(waiting)} task(s) have not ended in time, {min(waiting)} among them. They are not cancelled. Run "
        "'airflow horsies check' to see whether a live worker serves their queue.",
        task_id=min(waiting),
    )


def workflow_timeout(waiting: Collection[str]) -> WaitTimeout:
    return WaitTimeout(
        f"{len(waiting)} workflow(s) have not ended in time, {min(waiting)} among them. They are not cancelled. Run "
        "'airflow horsies check' to see whether live workers serve their queues, and resume them if they are paused.",
        task_id=min(waiting),
    )


def wait_until_stopped(client: Waiting, task_ids: Collection[str]) -> None:
    """A cancel ends a task at once; its worker needs a moment to stop and to write the last lines."""
    give_up = time.monotonic() + STOP_SECONDS
    while task_ids and time.monotonic() < give_up:
        records = client.read_attempts(task_ids)
        task_ids = [task_id for task_id, attempts in records.items() if attempts[-1].finished_at is None]
        if task_ids:
            time.sleep(STOP_POLL_SECONDS)


class _Remaining(Protocol):
    """What is waited for and has not ended."""

    ids: set[str]
    channel: Channel

    def read(self, ids: Collection[str], /) -> None:
        """Nothing remains once all have ended or ``until`` is true."""
        ...

    def concerned(self, notified: set[str], /) -> set[str]:
        """Those to read again after these notifications."""
        ...

    def timeout(self) -> WaitTimeout: ...


class _RemainingTasks:
    """The tasks that have not ended."""

    channel: Channel = TASK_DONE

    def __init__(
        self, client: Waiting, wanted: Sequence[str], until: Callable[[Mapping[str, TaskState]], bool] | None
    ) -> None:
        self.ids = set(wanted)
        self._client = client
        self._until = until
        self._ended: dict[str, TaskState] = {}

    def read(self, ids: Collection[str]) -> None:
        states = self._client.read(partial(read_waited_for, ids=ids))
        self._ended.update((task_id, state) for task_id, state in states.items() if state.is_terminal)
        self.ids.difference_update(self._ended)
        if self._until is not None and self._until(self._ended):
            self.ids.clear()

    def concerned(self, notified: set[str]) -> set[str]:
        return notified & self.ids

    def timeout(self) -> WaitTimeout:
        return wait_timeout(self.ids)


class _RemainingWorkflows:
    """The workflows that have not ended."""

    channel: Channel = WORKFLOW_DONE

    def __init__(
        self, client: Waiting, wanted: Sequence[str], until: Callable[[Mapping[str, WorkflowStatus]], bool] | None
    ) -> None:
        self.ids = set(wanted)
        self.known: dict[str, WorkflowStatus] = {}
        self._client = client
        self._until = until

    def read(self, ids: Collection[str]) -> None:
        states: dict[str, WorkflowStatus] = self._client.read(partial(workflows.read_waited_for, ids=ids))
        self.known |= states
        self.ids.difference_update(one for one, status in self.known.items() if status.state.is_terminal)
        if self._until is not None and self._until(self.known):
            self.ids.clear()

    def concerned(self, notified: set[str]) -> set[str]:
        """A notification of a workflow inside another names only the inner one."""
        others = notified - self.ids
        outer = self._client.read(partial(workflows.find_outer_workflows, ids=others)) if others else set()
        return (notified | outer) & self.ids

    def timeout(self) -> WaitTimeout:
        return workflow_timeout(self.ids)


class _Rest:
    """The time between two reads; ``meanwhile`` is called every other second, however often a task ends."""

    def __init__(self, listener: Listener | None, meanwhile: Callable[[], None] | None) -> None:
        self._listener = listener
        self._meanwhile = meanwhile
        self._turn = time.monotonic() + FOLLOW_SECONDS

    def until_notified(self, concerned: Callable[[set[str]], set[str]], seconds: float) -> set[str]:
        """Those that a notification concerns; empty after the given time."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._meanwhile is not None and now >= self._turn:
                self._meanwhile()
                self._turn = time.monotonic() + FOLLOW_SECONDS
            if now >= end:
                return set()
            pause = max((end if self._meanwhile is None else min(end, self._turn)) - time.monotonic(), 0)
            notified = self._listener.wait(pause) if self._listener else _sleep(pause)
            if notified and (wanted := concerned(notified)):
                return wanted


def _carry_out_requests(client: Waiting) -> None:
    """Carry out the requested cancels; an error does not affect the wait."""
    try:
        for _ in range(MOST_REQUEST_PAGES):
            if client.carry_out_requests() < CANCELS_AT_ONCE:
                break
    except HorsiesError as error:
        log.warning("Cannot carry out requested cancels yet: %s", error)


def _sleep(seconds: float) -> set[str]:
    """Wait without a listener, and so without notifications."""
    time.sleep(seconds)
    return set()


def _pause(poll_seconds: float, deadline: float | None, remaining: _Remaining) -> float:
    """How long to listen before the next read; WaitTimeout after the deadline."""
    if deadline is None:
        return poll_seconds
    left = deadline - time.monotonic()
    if left <= 0:
        raise remaining.timeout()
    return min(poll_seconds, left)


def _retry_pause(error: HorsiesError, seconds: float, deadline: float | None) -> float:
    """How long to wait before the next connection; raises the error after the deadline."""
    if deadline is not None and time.monotonic() + seconds > deadline:
        raise error
    log.warning("Cannot read the states of tasks. Trying again in %.1f s: %s", seconds, error)
    return seconds
