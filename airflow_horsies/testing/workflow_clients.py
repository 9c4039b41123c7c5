"""The part of the clients of a test that knows workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from airflow_horsies.client.calls import Scope, canonical_ids
from airflow_horsies.client.steps import Call
from airflow_horsies.client.waiting import POLL_SECONDS, workflow_timeout
from airflow_horsies.client.workflow_calls import encode_graph
from airflow_horsies.client.workflow_waiting import WorkflowWaiter
from airflow_horsies.core.graph import Graph
from airflow_horsies.core.paging import PageCursor, WorkflowPage, require_page_size
from airflow_horsies.core.submission import AirflowTry, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState, TaskView
from airflow_horsies.core.validation import require_int, require_task_id
from airflow_horsies.core.workflow import (
    READ_NODES,
    RESULT_CHARS,
    RetriedNodes,
    WorkflowOutcome,
    WorkflowState,
    WorkflowStatus,
    WorkflowView,
    require_workflow_states,
)
from airflow_horsies.exceptions import HorsiesError, TaskIdTaken, WorkflowNotPaused
from airflow_horsies.testing.workflows import new_workflow, outcome_of, status_of, summary_of, view_of

if TYPE_CHECKING:
    from airflow_horsies.testing.client import FakeClient
    from airflow_horsies.testing.ledger import FakeLedger
    from airflow_horsies.testing.memory import Memory
    from airflow_horsies.testing.plan import NewTask

T = TypeVar("T")


class FakeWorkflows:
    """The methods of FakeClient on workflows."""

    scope: Scope
    memory: Memory
    ledger: FakeLedger

    if TYPE_CHECKING:
        # Those of the client.
        def drive(self, call: Call[T]) -> T: ...
        def _submit(
            self, tasks: list[NewTask], task_instance: TaskInstanceKey, tried: AirflowTry
        ) -> list[SubmitResult]: ...

    def start_workflow(self, graph: Graph, *, workflow_id: str | None = None) -> str:
        given = None if workflow_id is None else require_task_id(workflow_id)
        new = new_workflow(graph, self.drive(encode_graph(self.scope, graph, workflow_id=given)))
        other = self.memory.sent.get(new.id)
        if other is not None and other.encoded.work != new.encoded.work:
            raise TaskIdTaken(
                f"A workflow with the id {new.id} already exists, with other nodes or arguments. Use another "
                "workflow_id.",
                task_id=new.id,
                queue=graph.queue,
            )
        if other is None:
            self.memory.insert(new)
        return new.id

    def submit_workflow(self, graph: Graph, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        new = new_workflow(graph, self.drive(encode_graph(self.scope, graph)))
        (result,) = self._submit([new], task_instance, tried)
        return result

    def list_workflows(
        self,
        *,
        states: Collection[WorkflowState] | None = None,
        name: str | None = None,
        before: PageCursor | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        require_page_size(limit)
        wanted = None if states is None else require_workflow_states(states)
        ids = [task_id for task_id in self.memory.tasks if self.memory.is_workflow(task_id)]
        found = [
            summary_of(task, new, is_paused=paused) for task, new, _, paused in map(self.memory.look_at_workflow, ids)
        ]
        found = [
            one
            for one in found
            if (wanted is None or one.state in wanted)
            and name in (None, one.name)
            and (before is None or (one.changed_at, one.id) < (before.at, before.task_id))
        ]
        found.sort(key=lambda one: (one.changed_at, one.id), reverse=True)
        last = found[:limit][-1] if len(found) > limit else None
        return WorkflowPage(
            workflows=tuple(found[:limit]),
            next=None if last is None else PageCursor(at=last.changed_at, task_id=last.id),
        )

    def read_workflow(
        self, workflow_id: str, *, limit: int = READ_NODES, result_chars: int = RESULT_CHARS
    ) -> WorkflowView:
        require_int("limit", limit, 1, READ_NODES)
        task, new, declared, is_paused = self.memory.look_at_workflow(require_task_id(workflow_id))
        return view_of(task, new, declared, is_paused=is_paused)

    def read_workflow_outcome(self, workflow_id: str) -> WorkflowOutcome:
        task, new, declared, is_paused = self.memory.look_at_workflow(require_task_id(workflow_id))
        return outcome_of(task, new, declared, is_paused=is_paused)

    def read_workflow_states(self, workflow_ids: Iterable[str]) -> dict[str, WorkflowStatus]:
        wanted = [one for one in canonical_ids(workflow_ids) if self.memory.is_workflow(one)]
        return {one: self._status(one) for one in wanted}

    def wait_workflows(
        self,
        workflow_ids: Iterable[str],
        *,
        timeout_seconds: float | None = None,
        poll_seconds: float = POLL_SECONDS,
        until: Callable[[Mapping[str, WorkflowStatus]], bool] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[WorkflowStatus]:
        has_time = timeout_seconds is None or timeout_seconds > 0
        known = {one: self._status(one, has_time=has_time) for one in canonical_ids(workflow_ids)}
        waiting = [one for one, status in known.items() if not status.state.is_terminal]
        if not waiting or (until is not None and until(known)):
            return list(known.values())
        if meanwhile is not None:
            meanwhile()
        if timeout_seconds is None:
            raise endless(self.memory.tasks[waiting[0]], noun="workflow")
        raise workflow_timeout(waiting)

    def cancel_workflow(self, workflow_id: str) -> CancelOutcome:
        task, *_ = self.memory.look_at_workflow(require_task_id(workflow_id), has_time=False)
        return self.memory.cancel_task(task.id)

    def pause_workflow(self, workflow_id: str) -> list[str]:
        task, _, _, is_paused = self.memory.look_at_workflow(require_task_id(workflow_id))
        if task.state is not TaskState.RUNNING or is_paused:
            return []
        self.memory.paused.add(task.id)
        return [task.id]

    def resume_workflow(self, workflow_id: str, *, queue: str | None = None) -> list[str]:
        task, _, _, is_paused = self.memory.look_at_workflow(require_task_id(workflow_id))
        if not is_paused:
            return []
        self.memory.paused.discard(task.id)
        self.memory.resumed.add(task.id)
        return [task.id]

    def retry_workflow(self, workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        failure = self.read_workflow_outcome(workflow_id).failure
        if not self.resume_workflow(workflow_id, queue=queue):
            raise WorkflowNotPaused(
                f"Workflow {workflow_id} is not paused. Only failed nodes of a paused workflow can be tried again. Use "
                "on_error='pause', so that it pauses when a node fails.",
                task_id=workflow_id,
            )
        return RetriedNodes(retried=() if failure is None else (failure.path[-1],))

    def _status(self, workflow_id: str, *, has_time: bool = True) -> WorkflowStatus:
        task, _, _, is_paused = self.memory.look_at_workflow(workflow_id, has_time=has_time)
        return status_of(task, is_paused=is_paused)


class FakeAsyncWorkflows:
    """The methods of FakeAsyncClient on workflows."""

    client: FakeClient

    async def start_workflow(self, graph: Graph, *, workflow_id: str | None = None) -> str:
        return self.client.start_workflow(graph, workflow_id=workflow_id)

    async def submit_workflow(self, graph: Graph, task_instance: TaskInstanceKey, tried: AirflowTry) -> SubmitResult:
        return self.client.submit_workflow(graph, task_instance, tried)

    async def read_workflow(
        self, workflow_id: str, *, limit: int = READ_NODES, result_chars: int = RESULT_CHARS
    ) -> WorkflowView:
        return self.client.read_workflow(workflow_id, limit=limit, result_chars=result_chars)

    async def read_workflow_outcome(self, workflow_id: str) -> WorkflowOutcome:
        return self.client.read_workflow_outcome(workflow_id)

    async def read_workflow_states(self, workflow_ids: Iterable[str]) -> dict[str, WorkflowStatus]:
        return self.client.read_workflow_states(workflow_ids)

    async def wait_workflow(
        self, workflow_id: str, *, timeout_seconds: float | None = None, until_paused: bool = False
    ) -> WorkflowOutcome:
        until = (lambda known: any(status.is_paused for status in known.values())) if until_paused else None
        self.client.wait_workflows([workflow_id], timeout_seconds=timeout_seconds, until=until)
        return self.client.read_workflow_outcome(workflow_id)

    async def cancel_workflow(self, workflow_id: str) -> CancelOutcome:
        return self.client.cancel_workflow(workflow_id)

    async def pause_workflow(self, workflow_id: str) -> list[str]:
        return self.client.pause_workflow(workflow_id)

    async def resume_workflow(self, workflow_id: str, *, queue: str | None = None) -> list[str]:
        return self.client.resume_workflow(workflow_id, queue=queue)

    async def retry_workflow(self, workflow_id: str, *, queue: str | None = None) -> RetriedNodes:
        return self.client.retry_workflow(workflow_id, queue=queue)

    @asynccontextmanager
    async def subscribe_workflows(self, workflow_ids: Collection[str]) -> AsyncIterator[WorkflowWaiter]:
        yield FakeWorkflowWaiter(self.client, canonical_ids(workflow_ids))


class FakeWorkflowWaiter(WorkflowWaiter):
    """Reads its workflows itself whenever it is asked for news."""

    def __init__(self, client: FakeWorkflows, workflow_ids: Iterable[str]) -> None:
        super().__init__(workflow_ids)
        self._client = client

    async def news(self, *, until: datetime | None = None) -> None:
        states = self._client.read_workflow_states(self.pending)
        for workflow_id in sorted(self.pending):
            self.deliver(workflow_id, states.get(workflow_id))
        if self.pending and not self._news.is_set():
            if until is None:
                raise endless(self._client.memory.tasks[min(self.pending)], noun="workflow")
            raise TimeoutError
        await super().news()


def endless(task: TaskView, noun: str = "task") -> HorsiesError:
    return HorsiesError(
        f"The horsies {noun} {task.task_name!r} does not end in this test, and the wait for it has no time-out. Set "
        f"execution_timeout or queue_timeout on the Airflow task, or declare that the horsies {noun} ends."
    )
