"""The commands of ``airflow horsies workflows``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_never

from airflow_horsies.cli.definition import format_cursor
from airflow_horsies.cli.printing import TEXT_FORMATS, escape_controls, first_line, print_data, short_time
from airflow_horsies.cli.running import audited, command
from airflow_horsies.client.addressing import find_workflow
from airflow_horsies.client.client import Client
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskFailure
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.core.workflow import NodeView, WorkflowOutcome, WorkflowSummary, WorkflowView
from airflow_horsies.exceptions import HorsiesError, InvalidTask

PAUSED_INSIDE = "paused inside"
AT_NEXT_CHECK = "Workers go on with it at their next check, by default within 30 seconds."


@command
def workflows_list(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows list``"""
    states = {state for states in args.state for state in states} if args.state else None
    page = client.list_workflows(states=states, name=args.name, before=args.before, limit=args.limit)
    row = _summary_row if args.output in TEXT_FORMATS else _summary_values
    print_data([row(one) for one in page.workflows], args.output)
    if page.next:
        more = f"More: --before {format_cursor(page.next)}"
        print(more, file=sys.stdout if args.output == "table" else sys.stderr)


@command
def workflows_show(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows show WORKFLOW``"""
    workflow_id = _address(args, client)
    # The values of nodes are on the pages, for those who may read them.
    view = client.read_workflow(workflow_id, result_chars=0)
    submissions = client.read_submissions_of_task(workflow_id)
    outcome = client.read_workflow_outcome(workflow_id)
    if args.output not in TEXT_FORMATS:
        print_data(
            {
                **_workflow_values(view),
                "failure": None if outcome.failure is None else str(outcome.failure),
                "sent_by": [
                    {"namespace": sent.namespace, **_instance_values(sent), "submitted_at": sent.submitted_at}
                    for sent in submissions
                ],
            },
            args.output,
        )
    else:
        print(_headline(view, submissions))
        for line in _notes(view, outcome):
            print(line)
        print_data([_node_row(depth, node) for depth, node in _walk(view)], args.output)
    if view.is_cut:
        count = sum(1 for _ in view.walk())
        print(f"The workflow has more nodes than the {count} that are shown.", file=sys.stderr)


@command
@audited
def workflows_pause(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows pause WORKFLOW``"""
    workflow_id = _address(args, client)
    paused = client.pause_workflow(workflow_id)
    if args.output not in TEXT_FORMATS:
        print_data({"workflow_id": workflow_id, "paused": paused, "state": _state_of(client, workflow_id)}, args.output)
    elif paused:
        print(f"Workflow {workflow_id} was paused{_others(paused, workflow_id)}. Running nodes end as usual.")
    else:
        print(f"Workflow {workflow_id} does not run: it is {_state_of(client, workflow_id)}.")


@command
@audited
def workflows_resume(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows resume WORKFLOW``"""
    workflow_id = _address(args, client)
    resumed = client.resume_workflow(workflow_id, queue=args.queue)
    if args.output not in TEXT_FORMATS:
        print_data({"workflow_id": workflow_id, "resumed": resumed}, args.output)
    elif not resumed:
        print(f"Workflow {workflow_id} is not paused: it is {_state_of(client, workflow_id)}.")
    elif args.queue is None:
        print(f"Workflow {workflow_id} was resumed{_others(resumed, workflow_id)}. {AT_NEXT_CHECK}")
    else:
        print(
            f"Asked a worker of queue {args.queue!r} to resume workflow {workflow_id}{_others(resumed, workflow_id)}."
        )


@command
@audited
def workflows_cancel(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows cancel WORKFLOW``"""
    workflow_id = _address(args, client)
    outcome = client.cancel_workflow(workflow_id)
    state = _state_of(client, workflow_id)
    if args.output not in TEXT_FORMATS:
        print_data({"workflow_id": workflow_id, "outcome": str(outcome), "state": state}, args.output)
        return
    match outcome:
        case CancelOutcome.CANCELLED:
            text = "was cancelled. Running nodes are told to stop"
        case CancelOutcome.ALREADY_CANCELLED:
            text = "was already cancelled"
        case CancelOutcome.ALREADY_FINISHED:
            text = f"had already ended as {state}"
        case CancelOutcome.STILL_WANTED | CancelOutcome.REQUESTED:
            raise AssertionError("A cancel by id is either carried out or refused.")
        case _:
            assert_never(outcome)
    print(f"Workflow {workflow_id} {text}.")


@command
@audited
def workflows_retry(args: Namespace, client: Client) -> None:
    """``airflow horsies workflows retry WORKFLOW``"""
    workflow_id = _address(args, client)
    nodes = client.retry_workflow(workflow_id, queue=args.queue)
    if not nodes.retried:
        why = "it has no failed node"
        if nodes.left:
            why = f"its failed nodes are workflows that have ended, which cannot run again: {', '.join(nodes.left)}"
        raise HorsiesError(
            f"Workflow {workflow_id} is paused, but {why}. Nothing was changed. Let it go on with 'airflow horsies "
            f"workflows resume {workflow_id}', or cancel it."
        )
    if args.output not in TEXT_FORMATS:
        print_data({"workflow_id": workflow_id, "retried": nodes.retried, "left": nodes.left}, args.output)
        return
    names = escape_controls(", ".join(nodes.retried))
    print(f"These nodes of workflow {workflow_id} run again: {names}.")
    if nodes.left:
        left = escape_controls(", ".join(nodes.left))
        print(f"These are workflows that have ended and stay as they are: {left}.")
    print(AT_NEXT_CHECK if args.queue is None else f"A worker of queue {args.queue!r} resumes it.")


def _address(args: Namespace, client: Client) -> str:
    """The id of the workflow that the arguments name."""
    match args.workflow:
        case [workflow_id]:
            if args.map_index >= 0:
                raise InvalidTask("--map-index", "is only for a task instance. Leave it out for the id of a workflow")
            return require_task_id(workflow_id)
        case [dag_id, run_id, task_id]:
            instance = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=args.map_index)
            return find_workflow(client, instance)
    raise InvalidTask("WORKFLOW", "must be the id of a workflow, or DAG_ID RUN_ID TASK_ID of a task instance")


def _state_of(client: Client, workflow_id: str) -> str:
    found = client.read_workflow_states([workflow_id])
    return _shown(found[workflow_id].state, found[workflow_id].is_paused_inside) if workflow_id in found else "gone"


def _shown(state: str, is_paused_inside: bool) -> str:
    return f"{state} ({PAUSED_INSIDE})" if is_paused_inside else str(state)


def _others(ids: list[str], workflow_id: str) -> str:
    count = sum(one != workflow_id for one in ids)
    if not count:
        return ""
    return f", with {count} {'workflow' if count == 1 else 'workflows'} inside it"


def _summary_row(one: WorkflowSummary) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": escape_controls(one.name),
        "state": _shown(one.state, one.is_paused_inside),
        "sent_at": short_time(one.sent_at),
        "changed_at": short_time(one.changed_at),
        "duration": _duration(one.started_at, one.finished_at),
    }


def _summary_values(one: WorkflowSummary) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "definition_key": one.definition_key,
        "state": one.state,
        "is_paused_inside": one.is_paused_inside,
        "sent_at": one.sent_at,
        "started_at": one.started_at,
        "finished_at": one.finished_at,
        "changed_at": one.changed_at,
    }


def _headline(view: WorkflowView, submissions: list[Submission]) -> str:
    sent_by = [f"sent by {sent.task_instance} (try {sent.try_number})" for sent in submissions]
    counts: dict[str, int] = {}
    for node in view.nodes:
        counts[node.shown_state] = counts.get(node.shown_state, 0) + 1
    return ", ".join(
        [
            f"{escape_controls(view.name)} {view.id}: {_shown(view.state, view.is_paused_inside)}",
            " ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no nodes",
            *(sent_by or ["not sent by an Airflow task"]),
        ]
    )


def _notes(view: WorkflowView, outcome: WorkflowOutcome) -> Iterator[str]:
    if outcome.failure is not None:
        yield f"failed at {first_line(str(outcome.failure))}"
    elif outcome.error is not None:
        yield f"error: {first_line(outcome.message)}"
    if view.is_paused:
        yield (
            f"It waits for 'airflow horsies workflows resume {view.id}', 'retry' to run failed nodes again, or "
            "'cancel'."
        )


def _walk(view: WorkflowView, depth: int = 0) -> Iterator[tuple[int, NodeView]]:
    for node in view.nodes:
        yield depth, node
        if node.workflow is not None:
            yield from _walk(node.workflow, depth + 1)


def _node_row(depth: int, node: NodeView) -> dict[str, Any]:
    error = _error_of(node)
    return {
        "node": f"{'  ' * depth}{escape_controls(node.name)}",
        "state": node.shown_state,
        "started_at": short_time(node.started_at),
        "duration": _duration(node.started_at, node.finished_at),
        "error_code": "" if error is None else escape_controls(error.error_code or ""),
        "error": "" if error is None else first_line(error.message or ""),
        "runs": escape_controls(node.task_name),
        "id": _id_of(node),
    }


def _id_of(node: NodeView) -> str:
    if node.workflow is not None:
        return node.workflow.id
    return node.task_id or ""


def _error_of(node: NodeView) -> TaskFailure | None:
    return None if node.result is None else node.result.error


def _duration(started_at: datetime | None, finished_at: datetime | None) -> str:
    return f"{(finished_at - started_at).total_seconds():.2f} s" if started_at and finished_at else ""


def _workflow_values(view: WorkflowView) -> dict[str, Any]:
    return {
        "id": view.id,
        "name": view.name,
        "definition_key": view.definition_key,
        "state": view.state,
        "is_paused_inside": view.is_paused_inside,
        "on_error": view.on_error,
        "sent_at": view.sent_at,
        "started_at": view.started_at,
        "finished_at": view.finished_at,
        "output": view.output,
        "error_code": None if view.error is None else view.error.error_code,
        "error": None if view.error is None else view.error.message,
        "is_cut": view.is_cut,
        "nodes": [_node_values(node) for node in view.nodes],
    }


def _node_values(node: NodeView) -> dict[str, Any]:
    error = _error_of(node)
    return {
        "name": node.name,
        "runs": node.task_name,
        "state": node.shown_state,
        "queue": node.queue,
        "after": node.after,
        "join": node.join,
        "min_success": node.min_success,
        "started_at": node.started_at,
        "finished_at": node.finished_at,
        "task_id": node.task_id,
        "error_code": None if error is None else error.error_code,
        "error": None if error is None else error.message,
        "workflow": None if node.workflow is None else _workflow_values(node.workflow),
    }


def _instance_values(sent: Submission) -> dict[str, Any]:
    instance = sent.task_instance
    return {
        "dag_id": instance.dag_id,
        "run_id": instance.run_id,
        "task_id": instance.task_id,
        "map_index": instance.map_index,
        "try_number": sent.try_number,
    }
