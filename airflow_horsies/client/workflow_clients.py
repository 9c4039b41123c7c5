"""The methods of the clients on workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from airflow_horsies.client import workflow_calls as calls
from airflow_horsies.client.calls import Scope, canonical_ids
from airflow_horsies.client.hub import hub_of
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import Call
from airflow_horsies.client.waiting import POLL_SECONDS, Waiting, wait_workflows, workflow_timeout
from airflow_horsies.client.workflow_waiting import WorkflowWaiter
from airflow_horsies.core.graph import Graph
from airflow_horsies.core.paging import PageCursor, WorkflowPage
from airflow_horsies.core.submission import AirflowTry, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome
from airflow_horsies.core.validation import require_int, require_task_id
from airflow_horsies.core.workflow import (
    READ_NODES,
    RESULT_CHARS,
    RetriedNodes,
    WorkflowOutcome,
    WorkflowState,
    WorkflowStatus,
    WorkflowView,
)
from airflow_horsies.wire import workflows
from airflow_horsies.wire.known import WireScript

T = TypeVar("T")


class WorkflowClient(Waiting):
    """The part of Client that knows workflows."""

    scope: Scope

    def drive(self, call: Call[T]) -> T:
        raise NotImplementedError

    def start_workflow(self, graph: Graph, *, workflow_id: str | None = None) -> str:
        return self.drive(calls.start_workflow(self.scope, graph, workflow_id=workflow_id))

    def submit_workflow(self, graph: Graph, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        return self.drive(calls.submit_workflow(self.scope, graph, task_instance, tried))

    def list_workflows(
        self,
        *,
        states: Collection[WorkflowState] | None = None,
        name: str | None = None,
        before: PageCursor | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        read = partial(workflows.list_workflows, states=states, name=name, before=before, limit=limit)
        return self.drive(calls.explain_grants(self.scope, calls.read(read)))

    def read_workflow(
        self, workflow_id: str, *, limit: int = READ_NODES, result_chars: int = RESULT_CHARS
    ) -> WorkflowView:
        require_int("limit", limit, 1, READ_NODES)
        read = partial(
            workflows.read_workflow, workflow_id=require_task_id(workflow_id), limit=limit, result_chars=result_chars
        )
        return self.drive(calls.explain_grants(self.scope, calls.read(read)))

    def read_workflow_outcome(self, workflow_id: str) -> WorkflowOutcome:
        read = partial(workflows.read_outcome, workflow_id=require_task_id(workflow_id))
        return self.drive(calls.explain_grants(self.scope, calls.read(read)))

    def read_workflow_states(self, workflow_ids: Iterable[str]) -> dict[str, WorkflowStatus]:
        read = partial(workflows.read_workflow_states, ids=canonical_ids(workflow_ids))
        return self.drive(calls.explain_grants(self.scope, calls.read(read)))

    def wait_workflows(
        self,
        workflow_ids: Iterable[str],
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        until: Callable[[Mapping[str, WorkflowStatus]], bool] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[WorkflowStatus]:
        return wait_workflows(
            self,
            canonical_ids(workflow_ids),
            timeout_seconds=timeout_seconds,
            poll_seconds=poll_seconds,
            until=until,
            meanwhile=meanwhile,
        )

    def wait_workflow(
        self, workflow_id: str, *, timeout_seconds: float | None = None, until_paused: bool = False
    ) -> WorkflowOutcome:
        """Wait until it has ended, or until it is paused, and return its outcome."""
        until = _some_paused if until_paused else None
        self.wait_workflows([workflow_id], timeout_seconds=timeout_seconds, until=until)
        return self.read_workflow_outcome(workflow_id)

    def cancel_workflow(self, workflow_id: str) -> CancelOutcome:
        return self.drive(calls.cancel_workflow(self.scope, workflow_id))

    def pause_workflow(self, workflow_id: str) -> list[str]:
        return self.drive(calls.pause_workflow(self.scope, workflow_id))

    def resume_workflow(self, workflow_id: str, *, queue: str | None = None) -> list[str]:
        return self.drive(calls.resume_workflow(self.scope, workflow_id, queue=queue))

    def retry_workflow(self, workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        return self.drive(calls.retry_workflow(self.scope, workflow_id, queue=queue))


class AsyncWorkflowClient:
    """The part of AsyncClient that knows workflows."""

    scope: Scope

    @property
    def settings(self) -> ClientSettings:
        raise NotImplementedError

    async def drive(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def read(self, make_script: WireScript[T]) -> T:
        raise NotImplementedError

    async def start_workflow(self, graph: Graph, *, workflow_id: str | None = None) -> str:
        return await self.drive(calls.start_workflow(self.scope, graph, workflow_id=workflow_id))

    async def submit_workflow(self, graph: Graph, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        return await self.drive(calls.submit_workflow(self.scope, graph, task_instance, tried))

    async def read_workflow(
        self, workflow_id: str, *, limit: int = READ_NODES, result_chars: int = RESULT_CHARS
    ) -> WorkflowView:
        require_int("limit", limit, 1, READ_NODES)
        read = partial(
            workflows.read_workflow, workflow_id=require_task_id(workflow_id), limit=limit, result_chars=result_chars
        )
        return await self.drive(calls.explain_grants(self.scope, calls.read(read)))

    async def read_workflow_outcome(self, workflow_id: str) -> WorkflowOutcome:
        read = partial(workflows.read_outcome, workflow_id=require_task_id(workflow_id))
        return await self.drive(calls.explain_grants(self.scope, calls.read(read)))

    async def read_workflow_states(self, workflow_ids: Iterable[str]) -> dict[str, WorkflowStatus]:
        read = partial(workflows.read_workflow_states, ids=canonical_ids(workflow_ids))
        return await self.drive(calls.explain_grants(self.scope, calls.read(read)))

    async def wait_workflow(
        self, workflow_id: str, *, timeout_seconds: float | None = None, until_paused: bool = False
    ) -> WorkflowOutcome:
        """Wait until it has ended, or until it is paused, and return its outcome."""
        wanted = require_task_id(workflow_id)
        async with self.subscribe_workflows([wanted]) as waiter:
            try:
                async with asyncio.timeout(timeout_seconds):
                    while waiter.pending and not (until_paused and waiter.paused):
                        await waiter.news()
            except TimeoutError:
                raise workflow_timeout(waiter.pending) from None
        if waiter.ended.get(wanted, WorkflowState.PAUSED) is None:
            raise workflows.workflow_not_found(wanted)
        return await self.read_workflow_outcome(wanted)

    @asynccontextmanager
    async def subscribe_workflows(self, workflow_ids: Collection[str]) -> AsyncIterator[WorkflowWaiter]:
        # An invalid id would fail the read for all waiters.
        wanted = canonical_ids(workflow_ids)
        hub = hub_of(self.settings.database, listens=self.settings.listens)
        async with hub.subscribe_workflows(wanted) as waiter:
            yield waiter

    async def cancel_workflow(self, workflow_id: str) -> CancelOutcome:
        return await self.drive(calls.cancel_workflow(self.scope, workflow_id))

    async def pause_workflow(self, workflow_id: str) -> list[str]:
        return await self.drive(calls.pause_workflow(self.scope, workflow_id))

    async def resume_workflow(self, workflow_id: str, *, queue: str | None = None) -> list[str]:
        return await self.drive(calls.resume_workflow(self.scope, workflow_id, queue=queue))

    async def retry_workflow(self, workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        return await self.drive(calls.retry_workflow(self.scope, workflow_id, queue=queue))


def _some_paused(known: Mapping[str, WorkflowStatus]) -> bool:
    return any(status.is_paused for status in known.values())
