"""What waits in the triggerer. Paths and arguments of triggers are kept in Airflow's database: treat them as schema."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_horsies.exceptions import DatabaseUnreachable, HorsiesError, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.hub import POLL_SECONDS, Waiter
from airflow_horsies.models import QueueDepth, Submission, TaskInstanceKey, TaskState
from airflow_horsies.task_log import StoredSeen, TaskLog, load_seen, store_seen

RETRY_SECONDS = 5.0
# Less than the 30 s after which Airflow gives up.
KILL_SECONDS = 25.0
# The first question to a triggerer of Airflow 3.1 or 3.2 may take it 10 s.
ANSWER_SECONDS = 20.0
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
    :param seen: attempt and number of the last line shown of each task; what they write after it is shown, and the
        event says how far. None shows nothing.
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
        seen: StoredSeen | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.task_ids = list(task_ids)
        self.horsies_conn_id = horsies_conn_id
        self.deadline = deadline
        self.queue_deadline = queue_deadline
        self.cancel_on_kill = cancel_on_kill
        self.seen = None if seen is None else load_seen(seen)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesTrigger", {"task_ids": self.task_ids, **self._common()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            yield TriggerEvent(await self._event())  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            if not KILL_REACHES_TRIGGERS and self.cancel_on_kill:
                await _undisturbed(self._cancel_if_killed())
            raise

    async def on_kill(self) -> None:
        """Airflow calls it when somebody acts on the deferred task instance, not when a triggerer shuts down."""
        if self.cancel_on_kill:
            await _undisturbed(self._cancel())

    async def _event(self) -> dict[str, Any]:
        hook = self._hook()
        while True:
            try:
                return self._payload(await self._watch(hook))
            except TaskNotFound as error:
                return self._payload(Reason.NOT_FOUND, str(error))
            except DatabaseUnreachable as lost:
                # The hub outlives a restart of the database, so what is asked beside it must, too.
                if self._is_over():
                    return self._payload(Reason.TIMED_OUT, str(lost))
                self.log.warning("Trying again in %.1f s: %s", RETRY_SECONDS, lost)
                await asyncio.sleep(RETRY_SECONDS)
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
        served = {queue.queue for queue in await hook.queues_async() if queue.served_by}
        tasks = (await hook.get_tasks_async(task_ids)).values()
        return any(task.state is TaskState.PENDING and task.queue not in served for task in tasks)

    async def _cancel(self) -> None:
        hook = self._hook()
        await hook.cancel_many_async(await self._find_task_ids(hook))

    async def _cancel_if_killed(self) -> None:
        if await self._was_killed():
            await self._cancel()

    async def _was_killed(self) -> bool:
        """Before Airflow 3.3 a cancelled trigger cannot tell why: it was a user if the task no longer waits for it."""
        instance = self.task_instance
        if instance is None:
            return False
        from airflow.sdk.execution_time import comms, task_runner

        supervisor: Any = task_runner.SUPERVISOR_COMMS
        reader = getattr(supervisor, "_reader_task", None)
        if reader is not None and reader.done():
            return False  # Airflow 3.2 in a shutdown: nobody would hear the answer
        question = comms.GetTaskStates(
            dag_id=instance.dag_id,
            task_ids=[instance.task_id],
            run_ids=[instance.run_id],
            map_index=instance.map_index,
        )
        # Never cancelled, as Airflow 3.1 would take a late answer for that to the next question.
        answer = asyncio.ensure_future(supervisor.asend(question))
        await asyncio.wait({answer}, timeout=ANSWER_SECONDS)
        if not answer.done():
            self.log.warning("Airflow does not say whether the task still waits for %s: they go on", self.task_ids)
            return False
        # One state, as one task instance was asked for; a mapped one is not named by its task_id alone.
        states = answer.result().task_states
        return "deferred" not in states.get(instance.run_id, {}).values()

    def _is_over(self) -> bool:
        return self.deadline is not None and _seconds_until(datetime.fromisoformat(self.deadline)) <= 0

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        return {"reason": reason.value, "message": message, "task_ids": self.task_ids, **self._stored_seen()}

    def _common(self) -> dict[str, Any]:
        return {
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            "queue_deadline": self.queue_deadline,
            "cancel_on_kill": self.cancel_on_kill,
            **self._stored_seen(),
        }

    def _stored_seen(self) -> dict[str, Any]:
        return {} if self.seen is None else {"seen": store_seen(self.seen)}

    def _hook(self) -> HorsiesHook:
        return HorsiesHook(self.horsies_conn_id)


class HorsiesBatchTrigger(HorsiesTrigger):
    """
    Wait for the tasks of a batch, found through the task instance that submitted them: they may be many.

    :param task_instance: dag_id, run_id, task_id and map_index of the task instance.
    :param life: the life whose submissions count.
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
        seen: StoredSeen | None = None,
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
            seen=seen,
        )
        self.submitter = dict(task_instance)
        self.life = life
        self.max_failures = max_failures

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesBatchTrigger", {
            "task_instance": self.submitter,
            "life": self.life,
            "max_failures": self.max_failures,
            **self._common(),
        }

    def _is_decided(self, ended: Mapping[str, TaskState | None]) -> bool:
        if self.max_failures is None:
            return False
        return sum(state is not TaskState.COMPLETED for state in ended.values()) > self.max_failures

    async def _find_task_ids(self, hook: HorsiesHook) -> list[str]:
        submissions = await hook.submissions_of_async(TaskInstanceKey(**self.submitter))
        latest = {each.position: each.horsies_task_id for each in submissions if each.life == self.life}
        return [latest[position] for position in sorted(latest)]


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
    ) -> None:
        super().__init__(task_ids=task_ids, horsies_conn_id=horsies_conn_id, deadline=deadline, cancel_on_kill=False)
        self.failed_states = sorted(failed_states)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesSensorTrigger", {
            "task_ids": self.task_ids,
            "failed_states": self.failed_states,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
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
    ) -> None:
        super().__init__(task_ids=[], failed_states=failed_states, horsies_conn_id=horsies_conn_id, deadline=deadline)
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
        }

    async def _find_task_ids(self, hook: HorsiesHook) -> list[str]:
        return latest_task_ids(await hook.submissions_of_async(TaskInstanceKey(**self.submitter)))

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
        while True:
            await self._hear(waiter)
            # A clear cancels the old tasks and submits new ones at once, so only the ends of the latest count.
            latest = await self._find_task_ids(hook)
            if latest != task_ids:
                return None, latest
            reason = self._reason(waiter) or (Reason.TIMED_OUT if self._is_over() else None)
            if reason is not None:
                return reason, latest

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
    ) -> None:
        super().__init__(task_ids=[], horsies_conn_id=horsies_conn_id, deadline=deadline, cancel_on_kill=False)
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


def latest_task_ids(submissions: Iterable[Submission]) -> list[str]:
    """What a task instance submitted last, by position: earlier lives and rounds no longer count."""
    submissions = list(submissions)
    life = max((each.life for each in submissions), default=0)
    latest: dict[int, Submission] = {}
    for each in submissions:
        if each.life == life and (each.position not in latest or latest[each.position].round < each.round):
            latest[each.position] = each
    return [latest[position].horsies_task_id for position in sorted(latest)]


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
    """Do the work to its end, though Airflow cancels a trigger again every second until it is gone."""
    task = asyncio.ensure_future(work)
    give_up = time.monotonic() + KILL_SECONDS
    while not task.done() and (left := give_up - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=left)
    task.cancel()
    await task
