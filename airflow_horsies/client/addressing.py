"""Finds what a task instance submitted."""

from __future__ import annotations

from airflow_horsies.client.client import Client
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import InvalidTask, WorkflowNotFound


def find_workflow(client: Client, task_instance: TaskInstanceKey) -> str:
    """The id of the workflow that a task instance submitted last; an error if it submitted none."""
    latest = [sent for sent in client.read_submissions(task_instance) if sent.is_latest]
    workflows = [sent for sent in latest if sent.kind is WorkKind.WORKFLOW]
    if workflows:
        return workflows[-1].horsies_task_id
    if latest:
        raise InvalidTask(
            "task_id",
            f"names a task instance that submitted a task, and no workflow: {task_instance}. Use "
            f"the commands on tasks for its task {latest[-1].horsies_task_id}",
        )
    raise WorkflowNotFound(
        f"The task instance {task_instance} has submitted nothing in namespace {client.namespace!r}, or its records "
        "are past their retention. Check the ids, the map index and the connection.",
        task_id="(none)",
    )
