"""The trigger that waits for the workflow of an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, ClassVar

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.waiting import FOLLOW_SECONDS
from airflow_horsies.client.workflow_waiting import WorkflowWaiter
from airflow_horsies.core.workflow import OnPaused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.task_log import StoredSeen
from airflow_horsies.triggers.workflow_log import WorkflowLog, describe_pause, first_tasks

# A workflow in which nothing happens is looked at less and less often, down to this interval.
MOST_FOLLOW_SECONDS = 15.0


class HorsiesWorkflowTrigger(HorsiesTrigger):
    """
    Wait until a workflow has ended, or is paused if that matters. The event contains the reason; the operator reads the
    workflow.

    :param workflow_id: the workflow to wait for.
    :param on_paused: what the operator does if it is paused: ``wait``, ``fail`` or ``cancel``.
    :param is_paused: whether it was paused before, which was told then.
    :param life: the life of the task instance that submitted it.
    :param shown: the keys of the nodes whose end was shown.
    :param seen: attempt and number of the last log line shown of each task of its nodes. Later lines are shown. None
        shows no lines, and the ends of nodes only when the workflow has ended.
    """

    decided: ClassVar[Reason] = Reason.PAUSED

    def __init__(
        self,
        *,
        workflow_id: str,
        on_paused: str = OnPaused.WAIT,
        is_paused: bool = False,
        life: int | None = None,
        shown: Collection[str] = (),
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
            task_ids=[workflow_id],
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            queue_deadline=queue_deadline,
            cancel_on_kill=cancel_on_kill,
            task_instance=task_instance,
            namespace=namespace,
            seen=seen,
            deferred_at=deferred_at,
        )
        self.workflow_id = workflow_id
        self.on_paused = OnPaused(on_paused)
        self.is_paused = is_paused
        self.life = life
        self.shown = set(shown)
        self._follow_seconds = FOLLOW_SECONDS

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesWorkflowTrigger", {
            "workflow_id": self.workflow_id,
            "task_instance": self.submitter,
            "life": self.life,
            **self._agreed(),
            **self._common(),
        }

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        return {**super()._payload(reason, message), "life": self.life, **self._agreed()}

    def _agreed(self) -> dict[str, Any]:
        return {"on_paused": self.on_paused.value, "is_paused": self.is_paused, "shown": sorted(self.shown)}

    async def _watch(self, client: AsyncClient) -> Reason:
        log = self._make_log()
        async with self._subscribe(client, self.task_ids) as waiter:
            return await self._wait(client, waiter, log)

    def _subscribe(self, client: AsyncClient, ids: Collection[str]) -> AbstractAsyncContextManager[Any]:
        return client.subscribe_workflows(ids)

    async def _wait_for_news(self, waiter: Any, until: datetime | None) -> None:
        if self.seen is None:
            await waiter.news(until=until)
            return
        # Nodes end and write while the workflow goes on.
        try:
            async with asyncio.timeout(self._follow_seconds) as pause:
                await waiter.news(until=until)
        except TimeoutError:
            if not pause.expired():
                raise

    async def _show(self, client: AsyncClient, waiter: WorkflowWaiter, task_log: WorkflowLog) -> None:
        if self.workflow_id in waiter.ended:
            # The operator shows the rest.
            return
        await self._note_pause(client, self.workflow_id in waiter.paused)
        is_new = await task_log.follow_async(client)
        self._follow_seconds = FOLLOW_SECONDS if is_new else min(self._follow_seconds * 1.5, MOST_FOLLOW_SECONDS)

    async def _note_pause(self, client: AsyncClient, is_paused: bool) -> None:
        if is_paused == self.is_paused:
            return
        self.is_paused = is_paused
        if is_paused:
            self.log.warning("%s", describe_pause(await client.read_workflow_outcome(self.workflow_id)))
        else:
            self.log.info("Workflow %s goes on.", self.workflow_id)

    async def _decide(self, client: AsyncClient, waiter: WorkflowWaiter, ended: Mapping[str, Any]) -> bool:
        return self.on_paused is not OnPaused.WAIT and bool(waiter.paused)

    async def _is_unserved(self, client: AsyncClient, task_ids: Collection[str]) -> bool:
        waiting = first_tasks(await client.read_workflow(self.workflow_id, result_chars=0))
        return bool(waiting) and await super()._is_unserved(client, waiting)

    async def show_last_lines(self, client: AsyncClient, task_ids: Sequence[str]) -> None:
        await self._make_log().finish_async(client)

    def _make_log(self) -> WorkflowLog:
        # The trigger keeps what was shown, also over errors.
        seen = {} if self.seen is None else self.seen
        log = WorkflowLog(self.log, self.workflow_id, seen=seen, shows_lines=self.seen is not None)
        log.shown = self.shown
        return log
