"""What waits in the triggerer. Paths and arguments of triggers are kept in Airflow's database: treat them as schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_horsies.exceptions import HorsiesError, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.hub import Waiter
from airflow_horsies.models import TaskInstanceKey, TaskState

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
    """

    def __init__(
        self,
        *,
        task_ids: Sequence[str],
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        queue_deadline: str | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.task_ids = list(task_ids)
        self.horsies_conn_id = horsies_conn_id
        self.deadline = deadline
        self.queue_deadline = queue_deadline
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesTrigger", {"task_ids": self.task_ids, **self._common()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            yield TriggerEvent(await self._event())  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            if not KILL_REACHES_TRIGGERS and await self._was_killed():
                await self.on_kill()
            raise

    async def on_kill(self) -> None:
        """Airflow calls it when somebody acts on the deferred task instance, not when a triggerer shuts down."""
        if self.cancel_on_kill:
            hook = self._hook()
            await hook.cancel_many_async(await self._find_task_ids(hook))

    async def _event(self) -> dict[str, Any]:
        hook = self._hook()
        try:
            task_ids = await self._find_task_ids(hook)
            async with hook.subscribe(task_ids) as waiter:
                reason = await self._wait(hook, waiter)
        except TaskNotFound as error:
            return self._payload(Reason.NOT_FOUND, str(error))
        except HorsiesError as error:
            return self._payload(Reason.ERROR, str(error))
        return self._payload(reason)

    async def _wait(self, hook: HorsiesHook, waiter: Waiter) -> Reason:
        queue_deadline = self.queue_deadline
        while waiter.pending:
            instants = [datetime.fromisoformat(text) for text in (self.deadline, queue_deadline) if text]
            try:
                async with asyncio.timeout(_seconds_until(min(instants)) if instants else None):
                    await waiter.news()
            except TimeoutError:
                if self.deadline and _seconds_until(datetime.fromisoformat(self.deadline)) <= 0:
                    return Reason.TIMED_OUT
                queue_deadline = None
                if await self._is_unserved(hook, waiter.pending):
                    return Reason.NOT_SERVED
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

    async def _was_killed(self) -> bool:
        """Before Airflow 3.3 a cancelled trigger cannot tell why: it was a user if the task no longer waits for it."""
        instance = self.task_instance
        if instance is None:
            return False
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=instance.dag_id,
            task_ids=[instance.task_id],
            run_ids=[instance.run_id],
            map_index=instance.map_index,
        )
        return bool(states.get(instance.run_id, {}).get(instance.task_id) != "deferred")

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        return {"reason": reason.value, "message": message, "task_ids": self.task_ids}

    def _common(self) -> dict[str, Any]:
        return {
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            "queue_deadline": self.queue_deadline,
            "cancel_on_kill": self.cancel_on_kill,
        }

    def _hook(self) -> HorsiesHook:
        return HorsiesHook(self.horsies_conn_id)


class HorsiesBatchTrigger(HorsiesTrigger):
    """
    Wait for the tasks of a batch, found through the task instance that submitted them: they may be many.

    :param task_instance: dag_id, run_id, task_id and map_index of the task instance.
    :param life: the life whose submissions count.
    :param max_failures: fire as soon as more tasks than this did not complete.
    """

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
    ) -> None:
        super().__init__(
            task_ids=[],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
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
        return list(latest.values())


def _seconds_until(instant: datetime) -> float:
    return max((instant - datetime.now(UTC)).total_seconds(), 0)
