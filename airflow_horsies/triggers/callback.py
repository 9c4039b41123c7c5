"""The trigger that waits for a callback and for the task that hands out its address."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.callback_waiting import CallbackWaiter
from airflow_horsies.client.callbacks import release_callback, settle_callback
from airflow_horsies.client.hub import Waiter
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import (
    FIRST_RETRY_SECONDS,
    MAX_RETRY_SECONDS,
    RETRIED_ERRORS,
    HorsiesTrigger,
    Reason,
    _seconds_until,
)
from airflow_horsies.triggers.task_log import StoredSeen, TaskLog


class HorsiesCallbackTrigger(HorsiesTrigger):
    """
    Wait until a callback has an outcome, or the task that hands out its address has not completed.

    :param callback_id: the callback.
    :param life: the life of the task instance that waits.

    Further parameters: see :class:`HorsiesTrigger`.
    """

    def __init__(
        self,
        *,
        callback_id: str,
        task_ids: Sequence[str],
        life: int | None = None,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        queue_deadline: str | None = None,
        cancel_on_kill: bool = True,
        task_instance: Mapping[str, Any] | None = None,
        namespace: str | None = None,
        seen: StoredSeen | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=task_ids,
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
            task_instance=task_instance,
            namespace=namespace,
            seen=seen,
            deferred_at=deferred_at,
        )
        self.callback_id = callback_id
        self.life = life

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesCallbackTrigger", {
            "callback_id": self.callback_id,
            "life": self.life,
            **super().serialize()[1],
        }

    async def _watch(self, client: AsyncClient) -> Reason:
        seen = {} if self.seen is None else self.seen
        task_log = TaskLog(self.log, self.task_ids, seen, numbered=False, places={})
        async with (
            client.subscribe(self.task_ids, seen=self.seen) as waiter,
            client.subscribe_callback(self.callback_id) as callback,
        ):
            return await self._wait_for_both(client, waiter, callback, task_log)

    async def _wait_for_both(
        self, client: AsyncClient, waiter: Waiter, callback: CallbackWaiter, task_log: TaskLog
    ) -> Reason:
        queue_deadline = self.queue_deadline
        while True:
            instants = [datetime.fromisoformat(text) for text in (self.deadline, queue_deadline) if text]
            until = min(instants, default=None)
            await _first_of(waiter, callback, math.inf if until is None else _seconds_until(until))
            task_log.show(waiter.take())
            if callback.is_over or await self._is_over_now(client, callback):
                return Reason.ENDED
            if _has_failed(waiter):
                return Reason.DECIDED
            if until is None or datetime.now(UTC) < until:
                continue
            if self._is_over():
                return Reason.TIMED_OUT
            queue_deadline = None
            if waiter.pending and await self._is_unserved(client, waiter.pending):
                return Reason.NOT_SERVED

    async def _is_over_now(self, client: AsyncClient, callback: CallbackWaiter) -> bool:
        """Whether its time is over, which a heartbeat may have moved since it was read."""
        if callback.callback is None or callback.seconds_left() > 0:
            return False
        callback.deliver(await client.drive(settle_callback(self.callback_id)))
        return callback.is_over

    async def _release(self, instance: TaskInstanceKey) -> None:
        backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            try:
                client = await self._client()
                await client.drive(
                    release_callback(
                        client.scope, self.task_ids, instance, callback_id=self.callback_id, life=self.life
                    )
                )
            except RETRIED_ERRORS as error:
                pause = backoff.next_pause()
                self.log.warning("Cannot void the callback of %s. Trying again in %.1f s: %s", instance, pause, error)
                await asyncio.sleep(pause)
            else:
                return

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        return {**super()._payload(reason, message), "callback_id": self.callback_id, "life": self.life}


def _has_failed(waiter: Waiter) -> bool:
    """A task past its retention has ended, too; then only the callback can tell."""
    return any(state not in (None, TaskState.COMPLETED) for state in waiter.ended.values())


async def _first_of(waiter: Waiter, callback: CallbackWaiter, seconds: float) -> None:
    """Return when there is news of either, or after the time."""
    waits = [asyncio.ensure_future(callback.over())]
    if waiter.pending:
        waits.append(asyncio.ensure_future(waiter.news()))
    try:
        timeout = None if seconds == math.inf else seconds
        done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
