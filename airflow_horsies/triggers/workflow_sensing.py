"""The triggers of the workflow sensor: they wait for workflows that were started elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from airflow_horsies.airflow_instance import can_ask, read_state_async
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.workflow import OnPaused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.triggers.base import Reason
from airflow_horsies.triggers.sensing import HorsiesSensorTrigger, HorsiesSubmissionTrigger


class _OfWorkflows:
    """What differs for workflows."""

    on_paused: OnPaused

    def _subscribe(self, client: AsyncClient, ids: Collection[str]) -> AbstractAsyncContextManager[Any]:
        return client.subscribe_workflows(ids)

    async def _show(self, client: AsyncClient, waiter: Any, task_log: Any) -> None:
        """A sensor shows no lines."""

    async def _effective_states(self, client: AsyncClient, ended: Mapping[str, Any]) -> dict[str, TaskState]:
        return {one: state.as_task_state for one, state in ended.items() if state is not None}

    def _fails_on(self, waiter: Any) -> bool:
        return self.on_paused is OnPaused.FAIL and bool(waiter.paused)


class HorsiesWorkflowSensorTrigger(_OfWorkflows, HorsiesSensorTrigger):
    """
    Wait for workflows that were started elsewhere. This trigger never cancels them.

    :param workflow_ids: the workflows to wait for.
    :param failed_states: fire as soon as a workflow has ended in one of these states.
    :param on_paused: ``wait``, or ``fail`` to fire as soon as one of them is paused.
    :param horsies_conn_id: the connection to their database.
    :param deadline: the ISO time of the time-out.
    """

    def __init__(
        self,
        *,
        workflow_ids: Sequence[str],
        failed_states: Iterable[str] = (),
        on_paused: str = OnPaused.WAIT,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_ids=workflow_ids,
            failed_states=failed_states,
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            deferred_at=deferred_at,
        )
        self.on_paused = OnPaused(on_paused)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "airflow_horsies.triggers.HorsiesWorkflowSensorTrigger", {
            "workflow_ids": self.task_ids,
            "failed_states": self.failed_states,
            "on_paused": self.on_paused.value,
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": self.deadline,
            **self._stored_deferral(),
        }

    async def _decide(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> bool:
        return self._fails_on(waiter) or await super()._decide(client, waiter, ended)


class HorsiesWorkflowSubmissionTrigger(_OfWorkflows, HorsiesSubmissionTrigger):
    """
    Wait until another task instance has submitted a workflow and the latest of them has ended.

    :param task_instance: dag_id, run_id, task_id and map_index of that task instance.
    :param allowed_states: the states its workflow must end in. After another state it waits for the next submission.
    :param failed_states: fire as soon as its workflow has ended in one of these states.
    :param on_paused: ``wait``, or ``fail`` to fire as soon as its workflow is paused.
    :param poll_seconds: the interval between checks for a new submission. The end of a workflow is noticed at once.
    """

    def __init__(
        self,
        *,
        task_instance: Mapping[str, Any],
        allowed_states: Iterable[str] = (TaskState.COMPLETED.value,),
        failed_states: Iterable[str] = (),
        on_paused: str = OnPaused.WAIT,
        poll_seconds: float = POLL_SECONDS,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deadline: str | None = None,
        deferred_at: str | None = None,
    ) -> None:
        super().__init__(
            task_instance=task_instance,
            allowed_states=allowed_states,
            failed_states=failed_states,
            poll_seconds=poll_seconds,
            horsies_conn_id=horsies_conn_id,
            deadline=deadline,
            deferred_at=deferred_at,
        )
        self.on_paused = OnPaused(on_paused)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        _, kwargs = super().serialize()
        return "airflow_horsies.triggers.HorsiesWorkflowSubmissionTrigger", {
            **kwargs,
            "on_paused": self.on_paused.value,
        }

    async def _reason(self, client: AsyncClient, waiter: Any, ended: Mapping[str, Any]) -> Reason | None:
        return Reason.PAUSED if self._fails_on(waiter) else await super()._reason(client, waiter, ended)

    async def _is_final(self, reason: Reason) -> bool:
        if reason is not Reason.PAUSED:
            return await super()._is_final(reason)
        # The task instance that submitted it still waits for it.
        if not can_ask():
            return True
        state = await read_state_async(self._submitter_key)
        return state is not None and state.is_at_work
