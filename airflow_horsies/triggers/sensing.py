"""The triggers of the sensors: they wait for tasks that were sent elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from airflow_horsies.airflow_instance import can_ask, read_state_async
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.core.batch import ChunkCount, effective_states
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import HorsiesTrigger, Reason, _seconds_until

SETTLE_SECONDS = 2.0


class HorsiesSensorTrigger(HorsiesTrigger):
    """
    Wait for tasks that were sent elsewhere. This trigger never cancels them.

    :param task_ids: the tasks to wait for.
    :param failed_states: fire as soon as a task has ended in one of these states.
    :param horsies_conn_id: the connection to their database.
    :param deadline: the ISO time of the time-out.
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
        self._counts: dict[str, ChunkCount] = {}
        self._counted: set[str] = set()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesSensorTrigger", {
            "task_ids": self.task_ids,
            "failed_states": self.failed_states,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    async def _decide(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> bool:
        states = await self._effective_states(client, ended)
        return any(state in self.failed_states for state in states.values())

    async def _effective_states(self, client: AsyncClient, ended: Mapping[str, Any]) -> dict[str, TaskState]:
        """The states of ended tasks; a chunk of which all requested items completed has completed."""
        found = {task_id: state for task_id, state in ended.items() if state is not None}
        new = [
            task_id
            for task_id, state in found.items()
            if state is not TaskState.COMPLETED and task_id not in self._counted
        ]
        self._counts |= await client.count_items(new, self.task_ids or None)
        self._counted.update(new)
        return effective_states(found, self._counts)


class HorsiesSubmissionTrigger(HorsiesSensorTrigger):
    """
    Wait until another task instance has submitted tasks and the latest of them have ended.

    :param task_instance: dag_id, run_id, task_id and map_index of that task instance.
    :param allowed_states: the states all its tasks must end in. After another state it waits for the next submission.
    :param failed_states: fire as soon as a task has ended in one of these states.
    :param poll_seconds: the interval between checks for a new submission. The end of a task is noticed at once.
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

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        return await client.read_latest_task_ids(self._submitter_key)

    @property
    def _submitter_key(self) -> TaskInstanceKey:
        return TaskInstanceKey(**self.submitter or {})

    async def _watch(self, client: AsyncClient) -> Reason:
        task_ids = await self._find_task_ids(client)
        while True:
            async with self._subscribe(client, task_ids) as waiter:
                reason, task_ids = await self._watch_while_latest(client, waiter, task_ids)
            if reason is not None:
                return reason

    async def _watch_while_latest(
        self, client: AsyncClient, waiter: Any, task_ids: list[str]
    ) -> tuple[Reason | None, list[str]]:
        """The reason to fire, or no reason and the ids of newer tasks."""
        pause = SETTLE_SECONDS
        while True:
            await self._wait_until_news(client, waiter)
            # A clear cancels the old tasks and submits new ones at once, so only the latest tasks count.
            latest = await self._find_task_ids(client)
            # Other items may be requested now, also of the same chunks.
            self._counted.clear()
            if latest != task_ids:
                return None, latest
            reason = await self._reason(client, waiter, waiter.ended)
            if reason is not None and not await self._is_final(reason):
                # The task instance was cleared or recreated and is about to submit, or it is about to end.
                reason = None
                await asyncio.sleep(pause)
                pause = min(pause * 2, max(self.poll_seconds, SETTLE_SECONDS))
            if reason is None and self._is_over():
                reason = Reason.TIMED_OUT
            if reason is not None:
                return reason, latest

    async def _is_final(self, reason: Reason) -> bool:
        """Whether the other task instance is not about to submit again."""
        return await self._has_ended()

    async def _has_ended(self) -> bool:
        """Whether the other task instance has ended; False while Airflow does not report its state."""
        if not can_ask():
            return True
        state = await read_state_async(self._submitter_key)
        return state is not None and state.has_ended

    async def _wait_until_news(self, client: AsyncClient, waiter: Any) -> None:
        """Return when there is a reason to fire, or when it is time to look for newer tasks."""
        pause = self.poll_seconds
        if self.deadline:
            pause = min(pause, _seconds_until(datetime.fromisoformat(self.deadline)))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                ended = waiter.ended
                while await self._reason(client, waiter, ended) is None:
                    await (waiter.news() if waiter.pending else asyncio.sleep(pause))
                    # Some that were looked at before may be among the first of them.
                    new = waiter.take_ended()
                    ended = new if waiter.pending else waiter.ended

    async def _reason(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> Reason | None:
        """:param ended: those to look at; all that have ended, if no others are left to wait for."""
        if None in ended.values():
            return Reason.NOT_FOUND
        states = (await self._effective_states(client, ended)).values()
        if any(state in self.failed_states for state in states):
            return Reason.DECIDED
        if states and not waiter.pending and all(state in self.allowed_states for state in states):
            return Reason.ENDED
        return None
