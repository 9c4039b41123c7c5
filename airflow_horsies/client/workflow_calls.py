"""The calls on workflows, written once and driven by both Client and AsyncClient."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from airflow_horsies.client.calls import Scope, find_class, submit_works
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import Call, Transaction
from airflow_horsies.core.graph import RESUME_TASK, Graph
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.core.workflow import RetriedNodes, WorkflowState
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied
from airflow_horsies.ledger import cancelling, submitting
from airflow_horsies.ledger.catalog import Gate
from airflow_horsies.ledger.identity import Submitter
from airflow_horsies.wire import workflows
from airflow_horsies.wire.encoding import EncodedTask, encode_task
from airflow_horsies.wire.graphs import EncodedWorkflow, encode_workflow
from airflow_horsies.wire.known import WireScript, writing
from airflow_horsies.wire.sending import insert_new_tasks
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")

NEEDED_GRANTS = "Workflows need more privileges than tasks. Let the owner of horsies' tables grant:"
NEEDED_TO_CANCEL = "And to cancel them, from horsies 0.5 on:"
# What workflows need and tasks do not.
GRANTED_FOR_WORKFLOWS = ("horsies_workflow", "horsies_key_reservations")


def start_workflow(scope: Scope, graph: Graph, *, workflow_id: str | None = None) -> Call[str]:
    """Start a graph and return the id of its workflow; an id that is in use for the same graph is returned."""
    given = None if workflow_id is None else require_task_id(workflow_id)
    encoded = yield from encode_graph(scope, graph, workflow_id=given)

    def start(wire: Wire) -> Script[str]:
        yield from workflows.start_workflow(wire, encoded)
        return encoded.id

    started: str = yield from explain_grants(scope, _write(start))
    return started


def submit_workflow(
    scope: Scope, graph: Graph, task_instance: TaskInstanceKey, tried: AirflowTry
) -> Call[SubmitResult]:
    """Start, reattach to or adopt the workflow of a task instance."""
    encoded = yield from encode_graph(scope, graph)

    def submit(wire: Wire, submitter: Submitter, *, can_cancel: bool, gate: Gate | None) -> Script[SubmitResult]:
        return (yield from submitting.submit_workflow(wire, submitter, encoded, can_cancel=can_cancel))

    result: SubmitResult = yield from explain_grants(scope, submit_works(scope, submit, task_instance, tried))
    return result


def encode_graph(scope: Scope, graph: Graph, *, workflow_id: str | None = None) -> Call[EncodedWorkflow]:
    """Validate and encode, so that an invalid graph is found before a connection is opened."""
    encoded = encode_workflow(graph, workflow_id=workflow_id, max_payload_bytes=scope.settings.max_payload_bytes)
    classes: dict[str, str] = {}
    for queue in sorted(encoded.first_queues):
        key = yield from find_class(scope, queue)
        if key is not None:
            classes[queue] = key
    return encoded._replace(classes=classes)


def cancel_workflow(scope: Scope, workflow_id: str) -> Call[CancelOutcome]:
    cancel = partial(cancelling.cancel_workflow_in_any_ledger, workflow_id=require_task_id(workflow_id))
    outcome: CancelOutcome = yield from explain_grants(scope, _write(cancel))
    return outcome


def pause_workflow(scope: Scope, workflow_id: str) -> Call[list[str]]:
    pause = partial(workflows.pause_workflow, workflow_id=require_task_id(workflow_id))
    paused: list[str] = yield from explain_grants(scope, _write(pause))
    return paused


def resume_workflow(scope: Scope, workflow_id: str, *, queue: str | None = None) -> Call[list[str]]:
    """
    Resume a workflow and those inside it.

    :param queue: let a worker of this queue do it at once; by default, the recovery of the workers does, at its next
        check.
    """
    wanted = require_task_id(workflow_id)
    resume = partial(workflows.resume_workflow, workflow_id=wanted)
    if queue is not None:
        task = encode_task(TaskSpec(task_name=RESUME_TASK, kwargs={"workflow_id": wanted}, queue=queue))
        resume = partial(_let_worker_resume, workflow_id=wanted, task=task)
    resumed: list[str] = yield from explain_grants(scope, _write(resume))
    return resumed


def _let_worker_resume(wire: Wire, workflow_id: str, task: EncodedTask) -> Script[list[str]]:
    """Send the task that resumes a workflow; returns the ids of the paused workflows."""
    view = yield from workflows.read_workflow(wire, workflow_id, result_chars=0, error_chars=0)
    inner = [node.workflow for _, node in view.walk() if node.workflow is not None]
    paused = [one.id for one in (view, *inner) if one.state is WorkflowState.PAUSED]
    if paused:
        yield from insert_new_tasks(wire, [task])
    return paused


def retry_workflow(scope: Scope, workflow_id: str, *, queue: str | None = None) -> Call[RetriedNodes]:
    """Let the failed nodes of a paused workflow run again, and resume it.

    :param queue: as for :func:`resume_workflow`.
    """
    wanted = require_task_id(workflow_id)
    task = None
    if queue is not None:
        task = encode_task(TaskSpec(task_name=RESUME_TASK, kwargs={"workflow_id": wanted}, queue=queue))

    def retry(wire: Wire) -> Script[RetriedNodes]:
        nodes = yield from workflows.retry_failed_nodes(wire, wanted)
        if nodes.retried and task is not None:
            yield from insert_new_tasks(wire, [task])
        elif nodes.retried:
            yield from workflows.resume_workflow(wire, wanted)
        return nodes

    retried: RetriedNodes = yield from explain_grants(scope, _write(retry))
    return retried


def read(make_script: WireScript[T]) -> Call[T]:
    found: T = yield Transaction(make_script)
    return found


def _write(make_script: WireScript[T]) -> Call[T]:
    outcome: T = yield Transaction(writing(make_script))
    return outcome


def explain_grants(scope: Scope, call: Call[T]) -> Call[T]:
    """The call; where a privilege is missing, its error names the grants that workflows need."""
    try:
        return (yield from call)
    except AccessDenied as error:
        if not any(table in str(error) for table in GRANTED_FOR_WORKFLOWS):
            raise
        raise AccessDenied(f"{error}\n{_grants(scope.settings)}") from error


def _grants(settings: ClientSettings) -> str:
    args: Mapping[str, object] = settings.database.connect_args
    user = args.get("user", "the user of this connection")
    to_start = f'GRANT SELECT, INSERT, UPDATE ON horsies_workflows, horsies_workflow_tasks TO "{user}";'
    to_cancel = f'GRANT SELECT, UPDATE ON horsies_key_reservations TO "{user}";'
    return f"{NEEDED_GRANTS}\n  {to_start}\n{NEEDED_TO_CANCEL}\n  {to_cancel}"
