"""The tasks that every app has: they begin and resume workflows. They never use Spark, and report no attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horsies import Horsies, TaskError, TaskResult

from airflow_horsies.borrowed.horsies import find_definition, known_definitions, resume_workflow
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.control import BEGIN, RESUME_WORKFLOW
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import HorsiesError, InvalidTask
from airflow_horsies.worker.errors import short
from airflow_horsies.worker.tasks import with_queue

MAX_SHOWN_NAMES = 20


def register_control_tasks(app: Horsies, database: Database) -> None:
    """:param database: where horsies' tables are."""

    task: Callable[..., Callable[[Any], Any]] = app.task

    @task(BEGIN, **with_queue(app, {}))
    def begin(*, definition_key: str | None = None) -> TaskResult[None, TaskError]:
        """Begin a workflow: the worker that ends this task starts the workflow, so it must know it."""
        if definition_key is None or find_definition(definition_key) is not None:
            return TaskResult(ok=None)
        return _failed("WORKFLOW_NOT_REGISTERED", describe_unknown_workflow(definition_key))

    @task(RESUME_WORKFLOW, **with_queue(app, {}))
    def resume(*, workflow_id: str) -> TaskResult[list[str], TaskError]:
        """Resume the paused workflows of a tree, and return their ids."""
        try:
            paused = find_paused(database, require_task_id(workflow_id))
        except InvalidTask:
            return _failed("BAD_INPUT", f"workflow_id must be a UUID, not {short(repr(workflow_id))}.")
        except HorsiesError as error:
            return _failed("WORKFLOW_NOT_RESUMED", short(str(error)))
        if paused is None:
            return _failed("NO_SUCH_WORKFLOW", f"There is no workflow {workflow_id}. It may be past its retention.")
        for found in paused:
            problem = resume_workflow(app, found)
            if problem is not None:
                return _failed("WORKFLOW_NOT_RESUMED", short(f"Workflow {found} could not be resumed: {problem}"))
        return TaskResult(ok=paused)


def find_paused(database: Database, workflow_id: str) -> list[str] | None:
    """The paused workflows of a tree whose parents are not paused; None if there is no such workflow."""
    client = WorkerClient(database)
    try:
        return client.find_paused_workflows(workflow_id)
    finally:
        client.close()


def describe_unknown_workflow(key: str) -> str:
    known = sorted(known_definitions())
    if not known:
        names = "It knows no workflows"
    else:
        rest = f" and {len(known) - MAX_SHOWN_NAMES} more" if len(known) > MAX_SHOWN_NAMES else ""
        names = f"It knows {', '.join(known[:MAX_SHOWN_NAMES])}{rest}"
    return short(
        f"This worker does not know the workflow {key!r}. {names}. Load the module that defines it on every worker of "
        "the queue, and restart the workers."
    )


def _failed(code: str, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))
