"""What waits in the triggerer. Paths and arguments of triggers are kept in Airflow's database: treat them as schema."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_horsies.airflow_instance import can_ask, read_state_async
from airflow_horsies.database import Backoff
from airflow_horsies.exceptions import (
    PASSING_ERRORS,
    AccessDenied,
    HistoryPartitionMissing,
    HorsiesError,
    LedgerOutdated,
    TaskNotFound,
)
from airflow_horsies.holding import Hold
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.hub import POLL_SECONDS, Waiter
from airflow_horsies.models import (
    QueueDepth,
    TaskInstanceKey,
    TaskState,
    batch_task_ids,
    is_unserved,
    latest_task_ids,
)
from airflow_horsies.task_log import StoredSeen, TaskLog, load_seen, store_seen

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 15.0
SETTLE_SECONDS = 2.0
# Somebody migrates our tables, starts a worker or corrects a password, and it goes on.
WAITED_OUT: tuple[type[HorsiesError], ...] = (*PASSING_ERRORS, AccessDenied, LedgerOutdated, HistoryPartitionMissing)
# Less than the 30 s after which Airflow gives up.
KILL_SECONDS = 25.0
# A password is changed in the database and in Airflow one after the other, as are grants.
ACCESS_SECONDS = 300.0
# How long a busy Airflow is asked what became of a task instance.
ASK_SECONDS = 300.0
KILL_REACHES_TRIGGERS = hasattr(BaseTrigger, "on_kill")


class Reason(StrEnum):
    """Why a trigger fired."""

    ENDED = "ended"
    DECIDED = "decided"
    TIMED_OUT = "timed_out"
    NOT_SERVED = "not_served"
    NOT_FOUND = "not_found"
    ERROR = "error"


class HorsiesTrigger(BaseTrigger):
    """
    Wait until horsies tasks have ended; the event says why it fired, and the operator reads the rest.

    All triggers of a triggerer share one connection per database.

    :param task_ids: the tasks to wait for.
    :param horsies_conn_id: the connection to their database.
    :param deadline: an ISO time after which to give up.
    :param queue_deadline: an ISO time at which a task must have started or its queue must be served.
    :param cancel_on_kill: cancel the tasks when somebody marks or clears the deferred task instance.
    :param task_instance: dag_id, run_id, task_id and map_index of the task instance that submitted them.
    :param namespace: the namespace it submitted in, whatever the connection says later.
    :param seen: attempt and number of the last line shown of each task; what they write after it is shown, and the
        event says how far. None shows nothing.
    :param deferred_at: an ISO time, when the task left its process: soon after it, the event is held back.
    """

    numbers_tasks: ClassVar[bool] = False

    def __init__(
        self,
        *,
        task_ids: Sequence[str],
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        queue_deadline: str | None = None,
        cancel_on_kill: bool = True,
        task_instance: Mapping[str, Any] | None = None,
        namespace: str | None = None,
        seen: StoredSeen | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.task_ids = list(task_ids)
        self.submitter = None if task_instance is None else dict(task_instance)
        self.namespace = namespace
        self.horsies_conn_id = horsies_conn_id
        self.deadline = deadline
        self.queue_deadline = queue_deadline
        self.cancel_on_kill = cancel_on_kill
        self.seen = None if seen is None else load_seen(seen)
        self.deferred_at = deferred_at

    def serialize(self) -> tuple[str, dict[str, Any]]:
        known = {} if self.submitter is None else {"task_instance": self.submitter}
        return "airflow_horsies.triggers.HorsiesTrigger", {"task_ids": self.task_ids, **known, **self._common()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            # Only a triggerer gives an id: without one, no scheduler is there that could fail the task.
            async with Hold(None if self.trigger_id is None else self.deferred_at) as hold:
                payload = await self._event()
                held = await hold.wait()
            yield TriggerEvent({**payload, "held_seconds": held} if held else payload)  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            if not KILL_REACHES_TRIGGERS:
                await self.on_kill()
            raise

    async def on_kill(self) -> None:
        """Airflow calls it when somebody acts on the deferred task instance, and also when another triggerer took over
        from one that was silent for a while: only the task instance itself tells which it was."""
        if self.cancel_on_kill:
            await _undisturbed(self._cancel_if_given_up())

    async def _event(self) -> dict[str, Any]:
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        denied_until: float | None = None
        while True:
            try:
                # The connection is read each time: its host or password may have changed.
                return self._payload(await self._watch(self._hook()))
            except TaskNotFound as error:
                return self._payload(Reason.NOT_FOUND, str(error))
            except WAITED_OUT as error:
                # The hub outlives a restart of the database, so what is asked beside it must, too.
                if self._is_over():
                    return self._payload(Reason.TIMED_OUT, str(error))
                if isinstance(error, AccessDenied):
                    if denied_until is not None and time.monotonic() > denied_until:
                        return self._payload(Reason.ERROR, str(error))
                    denied_until = denied_until or time.monotonic() + ACCESS_SECONDS
                pause = min(backoff.next_pause(), self._seconds_left())
                self.log.warning("Trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            except HorsiesError as error:
                return self._payload(Reason.ERROR, str(error))

    async def _watch(self, hook: HorsiesHook) -> Reason:
        task_ids = await self._find_task_ids(hook)
        task_log = TaskLog(self.log, task_ids, {} if self.seen is None else self.seen, numbered=self.numbers_tasks)
        async with hook.subscribe(task_ids, seen=self.seen) as waiter:
            return await self._wait(hook, waiter, task_log)

    async def _wait(self, hook: HorsiesHook, waiter: Waiter, task_log: TaskLog) -> Reason:
        queue_deadline = self.queue_deadline
        while waiter.pending:
            instants = [datetime.fromisoformat(text) for text in (self.deadline, queue_deadline) if text]
            try:
                async with asyncio.timeout(_seconds_until(min(instants)) if instants else None):
                    await waiter.news()
            except TimeoutError:
                if self._is_over():
                    return Reason.TIMED_OUT
                queue_deadline = None
                if await self._is_unserved(hook, waiter.pending):
                    return Reason.NOT_SERVED
            task_log.show(waiter.take())
            if None in waiter.ended.values():
                return Reason.NOT_FOUND
            if self._is_decided(waiter.ended):
                return Reason.DECIDED
        return Reason.ENDED

    def _is_decided(self, ended: Mapping[str, TaskState | None]) -> bool:
        """Whether waiting for the others would change nothing."""
        return False

    async def _find_task_ids(self, hook: HorsiesHook) -> list[str]:
        return self.task_ids

    async def _is_unserved(self, hook: HorsiesHook, task_ids: Collection[str]) -> bool:
        queues, now = await hook.queues_async(), datetime.now(UTC)
        return any(is_unserved(task, queues, now) for task in (await hook.get_tasks_async(task_ids)).values())

    async def _cancel_if_given_up(self) -> None:
        instance = self._submitted_by()
        if instance is None:
            return
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        give_up = time.monotonic() + ASK_SECONDS
        while (state := await read_state_async(instance)) is None and time.monotonic() < give_up:
            await asyncio.sleep(backoff.next_pause())
        if state is None:
            self.log.warning("Airflow does not say what became of %s: its horsies tasks go on", instance)
        elif state.is_given_up_by_trigger:
            await self._let_go(instance)

    async def _let_go(self, instance: TaskInstanceKey) -> None:
        """Tried for as long as this process lives: nobody else knows of the wish."""
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            try:
                hook = self._hook()
                await hook.release_async(await self._find_task_ids(hook), instance)
            except WAITED_OUT as error:
                pause = backoff.next_pause()
                self.log.warning("Cancelling the tasks of %s again in %.1f s: %s", instance, pause, error)
                await asyncio.sleep(pause)
            else:
                return

    def _submitted_by(self) -> TaskInstanceKey | None:
        if self.submitter is not None:
            return TaskInstanceKey(**self.submitter)
        # Stored by a release that did not say; the task instance that waits is the one that submitted.
        waiting = self.task_instance
        if waiting is None:
            return None
        return TaskInstanceKey(
            dag_id=waiting.dag_id, run_id=waiting.run_id, task_id=waiting.task_id, map_index=waiting.map_index
        )

    def _is_over(self) -> bool:
        return self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        return math.inf if self.deadline is None else _seconds_until(datetime.fromisoformat(self.deadline))

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        return {
            "reason": reason.value,
            "message": message,
            "task_ids": self.task_ids,
            "namespace": self.namespace,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_seen(),
        }

    def _common(self) -> dict[str, Any]:
        return {
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            "queue_deadline": self.queue_deadline,
            "cancel_on_kill": self.cancel_on_kill,
            **({} if self.namespace is None else {"namespace": self.namespace}),
            **self._stored_seen(),
            **self._stored_deferral(),
        }

    def _stored_deferral(self) -> dict[str, Any]:
        return {} if self.deferred_at is None else {"deferred_at": self.deferred_at}

    def _stored_seen(self) -> dict[str, Any]:
        return {} if self.seen is None else {"seen": store_seen(self.seen)}

    def _hook(self) -> HorsiesHook:
        return HorsiesHook(self.horsies_conn_id, namespace=self.namespace)


class HorsiesBatchTrigger(HorsiesTrigger):
    """
    Wait for the tasks of a batch, found through the task instance that submitted them: they may be many.

    :param task_instance: dag_id, run_id, task_id and map_index of the task instance.
    :param life: the life whose submissions count.
    :param size: the number of items: fewer are an error, never a success.
    :param max_failures: fire as soon as more tasks than this did not complete.
    """

    numbers_tasks: ClassVar[bool] = True

    def __init__(
        self,
        *,
        task_instance: Mapping[str, Any],
        life: int,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        queue_deadline: str | None = None,
        cancel_on_kill: bool = True,
        max_failures: int | None = None,
        size: int | None = None,
        namespace: str | None = None,
        seen: StoredSeen | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
            task_instance=task_instance,
            namespace=namespace,
            seen=seen,
            deferred_at=deferred_at,
        )
        self.size = size
        self.life = life
        self.max_failures = max_failures

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesBatchTrigger", {
            "task_instance": self.submitter,
            "life": self.life,
            "max_failures": self.max_failures,
            **({} if self.size is None else {"size": self.size}),
            **self._common(),
        }

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        agreed = {"life": self.life, "size": self.size, "max_failures": self.max_failures}
        return {**super()._payload(reason, message), **agreed}

    def _is_decided(self, ended: Mapping[str, TaskState | None]) -> bool:
        if self.max_failures is None:
            return False
        return sum(state is not TaskState.COMPLETED for state in ended.values()) > self.max_failures

    async def _find_task_ids(self, hook: HorsiesHook) -> list[str]:
        submissions = await hook.submissions_of_async(self._batch)
        return batch_task_ids(submissions, life=self.life, size=self.size)

    @property
    def _batch(self) -> TaskInstanceKey:
        return TaskInstanceKey(**self.submitter or {})


class HorsiesSensorTrigger(HorsiesTrigger):
    """
    Wait for tasks that somebody else sent; it never cancels them.

    :param task_ids: the tasks to wait for.
    :param failed_states: fire as soon as one of them ended in such a state.
    :param horsies_conn_id: the connection to their database.
    :param deadline: an ISO time after which to give up.
    """

    def __init__(
        self,
        *,
        task_ids: Sequence[str],
        failed_states: Iterable[str] = (),
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=task_ids,
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            cancel_on_kill=False,
            deferred_at=deferred_at,
        )
        self.failed_states = sorted(failed_states)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesSensorTrigger", {
            "task_ids": self.task_ids,
            "failed_states": self.failed_states,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    def _is_decided(self, ended: Mapping[str, TaskState | None]) -> bool:
        return any(state in self.failed_states for state in ended.values())


class HorsiesSubmissionTrigger(HorsiesSensorTrigger):
    """
    Wait until another task instance has submitted, and what it submitted last has ended.

    :param task_instance: dag_id, run_id, task_id and map_index of that task instance.
    :param allowed_states: the states all its tasks must end in; after another end it waits for the next submission.
    :param failed_states: fire as soon as one of them ended in such a state.
    :param poll_seconds: how often to look for a new submission; the end of a task wakes it at once.
    """

    def __init__(
        self,
        *,
        task_instance: Mapping[str, Any],
        allowed_states: Iterable[str] = (TaskState.COMPLETED.value,),
        failed_states: Iterable[str] = (),
        poll_seconds: float = POLL_SECONDS,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=[],
            failed_states=failed_states,
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            deferred_at=deferred_at,
        )
        self.submitter = dict(task_instance)
        self.allowed_states = sorted(allowed_states)
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesSubmissionTrigger", {
            "task_instance": self.submitter,
            "allowed_states": self.allowed_states,
            "failed_states": self.failed_states,
            "poll_seconds": self.poll_seconds,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    async def _find_task_ids(self, hook: HorsiesHook) -> list[str]:
        return latest_task_ids(await hook.submissions_of_async(self._other))

    @property
    def _other(self) -> TaskInstanceKey:
        return TaskInstanceKey(**self.submitter or {})

    async def _watch(self, hook: HorsiesHook) -> Reason:
        task_ids = await self._find_task_ids(hook)
        while True:
            async with hook.subscribe(task_ids) as waiter:
                reason, task_ids = await self._watch_while_latest(hook, waiter, task_ids)
            if reason is not None:
                return reason

    async def _watch_while_latest(
        self, hook: HorsiesHook, waiter: Waiter, task_ids: list[str]
    ) -> tuple[Reason | None, list[str]]:
        """What the end of the tasks means, or no reason and the ids of newer ones."""
        pause = SETTLE_SECONDS
        while True:
            await self._hear(waiter)
            # A clear cancels the old tasks and submits new ones at once, so only the ends of the latest count.
            latest = await self._find_task_ids(hook)
            if latest != task_ids:
                return None, latest
            reason = self._reason(waiter)
            if reason is not None and not await self._has_ended():
                # It was cleared or made again, and is about to submit; or it ends any moment.
                reason = None
                await asyncio.sleep(pause)
                pause = min(pause * 2, max(self.poll_seconds, SETTLE_SECONDS))
            if reason is None and self._is_over():
                reason = Reason.TIMED_OUT
            if reason is not None:
                return reason, latest

    async def _has_ended(self) -> bool:
        """Whether the other task instance is done with what it submitted; not as long as Airflow does not say."""
        if not can_ask():
            return True
        state = await read_state_async(self._other)
        return state is not None and state.has_ended

    async def _hear(self, waiter: Waiter) -> None:
        """Returns when the ends of the tasks mean something, or it is time to look for other tasks."""
        pause = self.poll_seconds
        if self.deadline:
            pause = min(pause, _seconds_until(datetime.fromisoformat(self.deadline)))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                while self._reason(waiter) is None:
                    await (waiter.news() if waiter.pending else asyncio.sleep(pause))

    def _reason(self, waiter: Waiter) -> Reason | None:
        states = waiter.ended.values()
        if None in states:
            return Reason.NOT_FOUND
        if self._is_decided(waiter.ended):
            return Reason.DECIDED
        if states and not waiter.pending and all(state in self.allowed_states for state in states):
            return Reason.ENDED
        return None


class HorsiesQueueTrigger(HorsiesTrigger):
    """
    Wait until a queue is served and holds few enough tasks.

    :param queue: the horsies queue.
    :param min_workers: how many live workers must serve it.
    :param max_depth: fewer tasks than this must be ready to run; None is no bound.
    :param poll_seconds: how often to look.
    :param horsies_conn_id: the connection to its database.
    :param deadline: an ISO time after which to give up.
    """

    def __init__(
        self,
        *,
        queue: str,
        min_workers: int = 1,
        max_depth: int | None = None,
        poll_seconds: float = POLL_SECONDS,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            cancel_on_kill=False,
            deferred_at=deferred_at,
        )
        self.queue = queue
        self.min_workers = min_workers
        self.max_depth = max_depth
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesQueueTrigger", {
            "queue": self.queue,
            "min_workers": self.min_workers,
            "max_depth": self.max_depth,
            "poll_seconds": self.poll_seconds,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    async def _watch(self, hook: HorsiesHook) -> Reason:
        while True:
            depth = depth_of(self.queue, await hook.queues_async())
            if is_open(depth, min_workers=self.min_workers, max_depth=self.max_depth):
                return Reason.ENDED
            if self._is_over():
                return Reason.TIMED_OUT
            left = _seconds_until(datetime.fromisoformat(self.deadline)) if self.deadline else self.poll_seconds
            await asyncio.sleep(min(self.poll_seconds, left))


def depth_of(queue: str, queues: Iterable[QueueDepth]) -> QueueDepth:
    """The depth of one queue; a queue nobody serves or fills is not listed."""
    for each in queues:
        if each.queue == queue:
            return each
    return QueueDepth(queue=queue, ready=0, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=0)


def is_open(depth: QueueDepth, *, min_workers: int, max_depth: int | None) -> bool:
    """Whether enough workers serve the queue and it can take more tasks."""
    return depth.served_by >= min_workers and (max_depth is None or depth.ready < max_depth)


def _seconds_until(instant: datetime) -> float:
    return max((instant - datetime.now(UTC)).total_seconds(), 0)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do the work though Airflow cancels a trigger again every second until it is gone; what takes longer than Airflow
    waits goes on in the background."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    give_up = time.monotonic() + KILL_SECONDS
    while not task.done() and (left := give_up - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=left)
    if task.done():
        task.result()


_unfinished: set[asyncio.Task[None]] = set()
