"""The trigger that waits for the tasks of an operator."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_horsies.airflow_instance import read_state_async
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.hub import Waiter
from airflow_horsies.client.workflow_waiting import WorkflowWaiter
from airflow_horsies.core.cluster import is_unserved
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.exceptions import (
    TRANSIENT_ERRORS,
    AccessDenied,
    HistoryPartitionMissing,
    HorsiesError,
    LedgerOutdated,
    TaskNotFound,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.holding import Hold
from airflow_horsies.triggers.task_log import StoredSeen, TaskLog, load_seen, store_seen

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 15.0
# These end when somebody migrates our tables, starts a worker or corrects a password.
RETRIED_ERRORS: tuple[type[HorsiesError], ...] = (
    *TRANSIENT_ERRORS,
    AccessDenied,
    LedgerOutdated,
    HistoryPartitionMissing,
)
# Less than the 30 s after which Airflow gives up.
KILL_SECONDS = 25.0
# Passwords and grants change in the database first and in Airflow later, or the other way round.
ACCESS_SECONDS = 300.0
# How long a busy Airflow is asked for the state of a task instance.
ASK_SECONDS = 300.0
AnyWaiter: TypeAlias = Waiter | WorkflowWaiter
KILL_REACHES_TRIGGERS = hasattr(BaseTrigger, "on_kill")


class Reason(StrEnum):
    """Why a trigger fired."""

    ENDED = "ended"
    DECIDED = "decided"
    TIMED_OUT = "timed_out"
    NOT_SERVED = "not_served"
    NOT_FOUND = "not_found"
    ERROR = "error"
    # Only of a workflow: somebody has to resume or cancel it.
    PAUSED = "paused"
    # Only in the event of a task that starts in the triggerer.
    NOT_STARTED = "not_started"


class HorsiesTrigger(BaseTrigger):
    """
    Wait until horsies tasks have ended. The event contains the reason; the operator reads the tasks.

    All triggers of a triggerer share one connection per database.

    :param task_ids: the tasks to wait for.
    :param horsies_conn_id: the connection to their database.
    :param deadline: the ISO time of the time-out.
    :param queue_deadline: an ISO time by which a task must have started or its queue must be served.
    :param cancel_on_kill: cancel the tasks when somebody marks or clears the deferred task instance.
    :param task_instance: dag_id, run_id, task_id and map_index of the task instance that submitted them.
    :param namespace: the namespace it submitted in, even if the connection changes later.
    :param seen: attempt and number of the last log line shown of each task. Later lines are shown, and the event
        contains the new position. None shows no lines.
    :param deferred_at: the ISO time at which the task left its process. An event soon after it is held back.
    """

    numbers_tasks: ClassVar[bool] = False
    # Why it fires before everything has ended.
    decided: ClassVar[Reason] = Reason.DECIDED
    # The life that waits, if it is known.
    life: int | None = None

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
            # Only a triggerer sets an id. Without one there is no scheduler that could fail the task.
            async with Hold(None if self.trigger_id is None else self.deferred_at) as hold:
                payload = await self._event()
                held = await hold.wait()
            yield await self._conclude({**payload, "held_seconds": held} if held else payload)
        except asyncio.CancelledError:
            if not KILL_REACHES_TRIGGERS:
                await self.on_kill()
            raise

    async def on_kill(self) -> None:
        """Airflow calls this when somebody acts on the deferred task instance, and also when another triggerer takes
        over from one that was silent for a while. Only the state of the task instance shows which."""
        if self.cancel_on_kill:
            await _shield(self._cancel_if_given_up())

    async def _conclude(self, payload: Mapping[str, Any]) -> TriggerEvent:
        """The event of the trigger: the operator continues on a worker."""
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _event(self) -> dict[str, Any]:
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        denied_until: float | None = None
        while True:
            try:
                # Read the connection each time: its host or password may have changed.
                return self._payload(await self._watch(await self._client()))
            except TaskNotFound as error:
                return self._payload(Reason.NOT_FOUND, str(error))
            except RETRIED_ERRORS as error:
                # The hub survives a restart of the database, so the queries beside it must, too.
                if self._is_over():
                    return self._payload(Reason.TIMED_OUT, str(error))
                if isinstance(error, AccessDenied):
                    if denied_until is not None and time.monotonic() > denied_until:
                        return self._payload(Reason.ERROR, str(error))
                    denied_until = denied_until or time.monotonic() + ACCESS_SECONDS
                pause = min(backoff.next_pause(), self._seconds_left())
                self.log.warning("Cannot read the tasks. Trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            except HorsiesError as error:
                return self._payload(Reason.ERROR, str(error))

    async def _watch(self, client: AsyncClient) -> Reason:
        task_ids = await self._find_task_ids(client)
        places = {} if self.seen is None else await self._places_of_items(client)
        seen = {} if self.seen is None else self.seen
        task_log = TaskLog(self.log, task_ids, seen, numbered=self.numbers_tasks, places=places)
        async with self._subscribe(client, task_ids) as waiter:
            return await self._wait(client, waiter, task_log)

    def _subscribe(self, client: AsyncClient, ids: Collection[str]) -> AbstractAsyncContextManager[Any]:
        return client.subscribe(ids, seen=self.seen)

    async def _wait(self, client: AsyncClient, waiter: AnyWaiter, task_log: Any) -> Reason:
        queue_deadline = self.queue_deadline
        while waiter.pending:
            instants = [datetime.fromisoformat(text) for text in (self.deadline, queue_deadline) if text]
            until = min(instants, default=None)
            try:
                await self._wait_for_news(waiter, until)
            except TimeoutError:
                if self._is_over(until):
                    return Reason.TIMED_OUT
                queue_deadline = None
                if await self._is_unserved(client, waiter.pending):
                    return Reason.NOT_SERVED
            await self._show(client, waiter, task_log)
            # Only what is new: a batch may have a hundred thousand tasks, and each end wakes its trigger.
            ended = waiter.take_ended()
            if None in ended.values():
                return Reason.NOT_FOUND
            if await self._decide(client, waiter, ended):
                return self.decided
        return Reason.ENDED

    async def _wait_for_news(self, waiter: Any, until: datetime | None) -> None:
        await waiter.news(until=until)

    async def _show(self, client: AsyncClient, waiter: Any, task_log: Any) -> None:
        task_log.show(waiter.take())

    async def show_last_lines(self, client: AsyncClient, task_ids: Sequence[str]) -> None:
        """Show what is left of the log of these tasks, which have ended."""
        if self.seen is None or not task_ids:
            return
        places = await self._places_of_items(client)
        task_log = TaskLog(self.log, task_ids, self.seen, numbered=self.numbers_tasks, places=places)
        await task_log.finish_async(client)

    async def _decide(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> bool:
        """Whether the outcome no longer depends on the unfinished tasks.

        :param ended: the tasks that have ended since the last call.
        """
        return False

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        return self.task_ids

    async def _places_of_items(self, client: AsyncClient) -> Mapping[tuple[str, int], int]:
        """The places of the items of chunks, by task and number."""
        return {}

    async def _is_unserved(self, client: AsyncClient, task_ids: Collection[str]) -> bool:
        queues, now = await client.read_queues(), datetime.now(UTC)
        return any(is_unserved(task, queues, now) for task in (await client.read_outlines(task_ids)).values())

    async def _cancel_if_given_up(self) -> None:
        instance = self._submitted_by()
        if instance is None:
            return
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        give_up = time.monotonic() + ASK_SECONDS
        while (state := await read_state_async(instance)) is None and time.monotonic() < give_up:
            await asyncio.sleep(backoff.next_pause())
        if state is None:
            self.log.warning("Airflow does not report the state of %s. Its horsies tasks continue.", instance)
        elif state.is_given_up_by_trigger:
            await self._release(instance)

    async def _release(self, instance: TaskInstanceKey) -> None:
        """Retries as long as this process lives: nothing else knows of the request."""
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            try:
                client = await self._client()
                await client.release_tasks(await self._find_task_ids(client), instance, life=self.life)
            except RETRIED_ERRORS as error:
                pause = backoff.next_pause()
                self.log.warning("Cannot cancel the tasks of %s. Trying again in %.1f s: %s", instance, pause, error)
                await asyncio.sleep(pause)
            else:
                return

    def _submitted_by(self) -> TaskInstanceKey | None:
        if self.submitter is not None:
            return TaskInstanceKey(**self.submitter)
        # An older release stored no key. The task instance that waits is the one that submitted.
        waiting = self.task_instance
        if waiting is None:
            return None
        return TaskInstanceKey(
            dag_id=waiting.dag_id, run_id=waiting.run_id, task_id=waiting.task_id, map_index=waiting.map_index
        )

    def _is_over(self, now: datetime | None = None) -> bool:
        return self.deadline is not None and (now or datetime.now(UTC)) >= datetime.fromisoformat(self.deadline)

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

    async def _client(self) -> AsyncClient:
        return await HorsiesHook(self.horsies_conn_id, namespace=self.namespace).async_client()


def _seconds_until(instant: datetime) -> float:
    return max((instant - datetime.now(UTC)).total_seconds(), 0)


async def _shield(work: Coroutine[Any, Any, None]) -> None:
    """Do the work although Airflow cancels a trigger every second until it is gone. Work that takes longer than Airflow
    waits continues in the background."""
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
