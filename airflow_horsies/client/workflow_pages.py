"""What the pages show of a workflow: one bounded read of its nodes, and of the tasks that tell more of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from airflow_horsies.client.client import Client
from airflow_horsies.client.signals import Parking
from airflow_horsies.client.workflow_calls import explain_grants, read
from airflow_horsies.core.catalog import Request
from airflow_horsies.core.graph import RESUME_TASK
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.core.workflow import READ_NODES, NodeState, NodeView, WorkflowView
from airflow_horsies.db.statement import Script
from airflow_horsies.ledger import catalog
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.wire import reading, workflows
from airflow_horsies.wire.statements import Wire
from airflow_horsies.wire.workflows import FoundNode

__all__ = ["FoundNode", "ShownWorkflow", "find_node", "find_resume_queue", "read_shown_workflow"]

# Of a longer error of a node, the page shows what its task tells.
ERROR_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWorkflow:
    """A workflow, the tasks of its live and failed nodes, and the waits of those that are parked."""

    view: WorkflowView
    tasks: Mapping[str, TaskView] = field(default_factory=dict)
    parked: Mapping[str, Parking] = field(default_factory=dict)


def read_shown_workflow(client: Client, workflow_id: str) -> ShownWorkflow:
    """WorkflowNotFound if it never existed or is past its retention."""
    look = partial(
        workflows.read_workflow,
        workflow_id=require_task_id(workflow_id),
        limit=READ_NODES,
        result_chars=0,
        error_chars=ERROR_CHARS,
    )
    view = client.drive(explain_grants(client.scope, read(look)))
    ids = [node.task_id for _, node in view.walk() if node.task_id is not None and _is_told_by_task(node)]
    tasks = client.read(lambda wire: reading.read_tasks(wire, ids, whole=False))
    waiting = [task.id for task in tasks.values() if task.state is TaskState.PENDING and task.retry_count]
    parkings = client.read_parkings(waiting) if waiting else {}
    parked = {
        task_id: wait for task_id, waits in parkings.items() for wait in waits if _is_parked(tasks[task_id], wait)
    }
    return ShownWorkflow(view=view, tasks=tasks, parked=parked)


def find_node(client: Client, root: str, workflow_id: str, index: int) -> FoundNode | None:
    """A node by its place; None unless it is in the workflow ``root`` or in one inside it."""
    look = partial(workflows.find_node, root=root, workflow_id=require_task_id(workflow_id), index=index)
    return client.drive(explain_grants(client.scope, read(look)))


def find_resume_queue(client: Client, queue: str) -> str | None:
    """The queue, if one of its workers can resume a workflow at once; None if the recovery of the workers must do it,
    because no process is free or a worker of the queue may not know the task for it."""
    serving = [worker for worker in client.read_workers() if worker.alive and queue in worker.queues]
    if not any(worker.tasks_running + worker.tasks_claimed < worker.processes for worker in serving):
        return None
    return queue if client.read(partial(_can_all_resume, queue=queue), pipelined=False) else None


def _can_all_resume(wire: Wire, queue: str) -> Script[bool]:
    if (yield from read_version()) < catalog.SINCE:
        return False
    known = yield from catalog.judge(wire, Request(queue, RESUME_TASK, '{"workflow_id":""}'))
    return known.refusal is None and known.silent is None


def _is_told_by_task(node: NodeView) -> bool:
    return node.state in (NodeState.ENQUEUED, NodeState.RUNNING, NodeState.FAILED)


def _is_parked(task: TaskView, wait: Parking) -> bool:
    """Whether the last attempt of the task ended to wait."""
    return task.retry_count == wait.attempt
