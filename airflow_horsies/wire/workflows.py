"""Starts, reads, cancels, pauses and resumes workflows, as scripts that run in one transaction.

horsies has functions for the tasks of a workflow only. Its own code changes workflows and nodes by a few statements;
ours are the same, in the same order of locks: workflows before tasks, tasks before nodes, outer workflows before inner
ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_horsies.core.graph import WRAPPER_KEY
from airflow_horsies.core.paging import PageCursor, WorkflowPage, require_page_size
from airflow_horsies.core.task import CancelOutcome
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
from airflow_horsies.db.statement import Row, Rows, Script
from airflow_horsies.exceptions import SchemaUnsupported, TaskIdTaken, WorkflowNotFound, WorkflowNotPaused
from airflow_horsies.wire.decoding_workflows import (
    decode_failure,
    decode_identity,
    decode_output,
    decode_stored_error,
    decode_summary,
    decode_tree,
    decode_workflow_state,
)
from airflow_horsies.wire.graphs import EncodedWorkflow
from airflow_horsies.wire.sending import require_retention_classes
from airflow_horsies.wire.statements import Wire

ERROR_CHARS = 20_000
# The whole error of a node, with its trace.
WHOLE_ERROR_CHARS = 1_000_000
MOST_FAILURES = 100


@dataclass(frozen=True, slots=True)
class InnerWorkflow:
    """A workflow, and the one that was asked for, which is itself or is around it."""

    id: str
    root_id: str
    name: str
    state: WorkflowState
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class CancelledWorkflow:
    """What a cancel found.

    :param running: the tasks that run on until their workers are told to stop them.
    """

    outcome: CancelOutcome
    state: WorkflowState
    running: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNode:
    """A node of a workflow, and the task that runs it, once there is one."""

    name: str
    task_name: str
    task_id: str | None


# -- starting --------------------------------------------------------------------------------------------------------


def start_workflow(wire: Wire, workflow: EncodedWorkflow) -> Script[bool]:
    """Start it and return whether it was started now; an id that belongs to another workflow is an error."""
    if (yield from insert_workflow(wire, workflow)):
        return True
    identities = yield from _read_identities(wire, [workflow.id])
    if identities.get(workflow.id, workflow.identity) != workflow.identity:
        raise TaskIdTaken(
            f"A workflow with the id {workflow.id} already exists, with other nodes or arguments. Use another "
            "workflow_id.",
            task_id=workflow.id,
            queue=workflow.queue_name,
        )
    return False


def insert_workflow(wire: Wire, workflow: EncodedWorkflow) -> Script[bool]:
    """Insert the rows, unless the id is in use."""
    classes = {workflow.classes[queue] for queue in workflow.first_queues if queue in workflow.classes}
    if classes:
        yield from require_retention_classes(wire, classes)
    return bool((yield wire.of_workflows("start_workflow", **workflow.columns)))


def _read_identities(wire: Wire, ids: Collection[str]) -> Script[dict[str, tuple[object, ...]]]:
    rows = yield wire.of_workflows("find_workflow_commands", ids=list(ids))
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return {workflow_id: decode_identity(workflow_id, nodes) for workflow_id, nodes in found.items()}


# -- reading ---------------------------------------------------------------------------------------------------------


def read_statuses(wire: Wire, ids: Collection[str]) -> Script[dict[str, WorkflowState]]:
    """The states of the existing workflows, by id."""
    if not ids:
        return {}
    rows = yield wire.of_workflows("read_workflow_statuses", ids=list(ids))
    return {row["id"]: decode_workflow_state(row["id"], row["status"]) for row in rows}


def read_workflow_states(wire: Wire, ids: Collection[str]) -> Script[dict[str, WorkflowStatus]]:
    """As read_statuses, and whether a workflow inside is paused."""
    rows = (yield wire.of_workflows("read_workflow_states", ids=list(ids))) if ids else []
    return {
        row["id"]: WorkflowStatus(
            id=row["id"],
            state=decode_workflow_state(row["id"], row["status"]),
            is_paused_inside=row["is_paused_inside"],
        )
        for row in rows
    }


def read_waited_for(wire: Wire, ids: Collection[str]) -> Script[dict[str, WorkflowStatus]]:
    """As read_workflow_states; WorkflowNotFound for a missing workflow."""
    found = yield from read_workflow_states(wire, ids)
    absent = set(ids) - found.keys()
    if absent and not wire.schema.cutover_is_pending:
        raise workflow_not_found(min(absent))
    return found


def find_outer_workflows(wire: Wire, ids: Collection[str]) -> Script[set[str]]:
    """The workflows that these are in."""
    rows = (yield wire.of_workflows("find_outer_workflows", ids=list(ids))) if ids else []
    return {row["id"] for row in rows}


def find_inner_workflows(wire: Wire, ids: Collection[str], *, limit: int) -> Script[list[InnerWorkflow]]:
    """Workflows and those inside them, outer ones first."""
    rows = yield wire.of_workflows("find_inner_workflows", ids=list(ids), limit=limit)
    return [
        InnerWorkflow(
            id=row["id"],
            root_id=row["root_id"],
            name=row["name"],
            state=decode_workflow_state(row["id"], row["status"]),
            changed_at=row["updated_at"].astimezone(UTC),
        )
        for row in rows
    ]


def list_workflows(
    wire: Wire,
    *,
    states: Collection[WorkflowState] | None = None,
    name: str | None = None,
    before: PageCursor | None = None,
    limit: int = 50,
) -> Script[WorkflowPage]:
    """One page of the outermost workflows, the one that changed last first."""
    require_page_size(limit)
    rows = yield wire.of_workflows(
        "list_workflows",
        states=None if states is None else sorted(require_workflow_states(states)),
        name=name,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.task_id,
        limit=limit + 1,
    )
    found = tuple(decode_summary(row) for row in rows[:limit])
    more = len(rows) > limit
    return WorkflowPage(
        workflows=found, next=PageCursor(at=found[-1].changed_at, task_id=found[-1].id) if more else None
    )


def read_workflow(
    wire: Wire,
    workflow_id: str,
    *,
    limit: int = READ_NODES,
    result_chars: int = RESULT_CHARS,
    error_chars: int = ERROR_CHARS,
) -> Script[WorkflowView]:
    """A workflow with its nodes and the workflows inside it.

    :param limit: how many nodes to read.
    :param result_chars: longer results are left out.
    :param error_chars: longer errors are left out.
    """
    rows = yield wire.of_workflows(
        "read_workflow", id=workflow_id, limit=limit + 1, result_chars=result_chars, error_chars=error_chars
    )
    if not rows:
        raise workflow_not_found(workflow_id)
    return decode_tree(workflow_id, rows[:limit], is_cut=len(rows) > limit)


def find_node(wire: Wire, root: str, workflow_id: str, index: int) -> Script[FoundNode | None]:
    """A node by its place; None unless it is in the workflow ``root`` or in one inside it."""
    rows = yield wire.of_workflows("find_node", root=root, id=workflow_id, index=index)
    if not rows:
        return None
    (row,) = rows
    return FoundNode(name=row["node_id"] or str(index), task_name=row["task_name"], task_id=row["task_id"])


def read_outcome(wire: Wire, workflow_id: str) -> Script[WorkflowOutcome]:
    """How far a workflow is, what it returned, and which node made it fail."""
    rows = yield wire.of_workflows("read_workflow_end", id=workflow_id, wrapper_key=WRAPPER_KEY)
    if not rows:
        raise workflow_not_found(workflow_id)
    (row,) = rows
    state = decode_workflow_state(workflow_id, row["status"])
    failures: Rows = []
    if state is not WorkflowState.COMPLETED:
        failures = yield wire.of_workflows(
            "find_failed_nodes",
            id=workflow_id,
            wrapper_key=WRAPPER_KEY,
            chars=WHOLE_ERROR_CHARS,
            limit=MOST_FAILURES,
        )
    is_paused = False
    if not state.is_terminal:
        statuses = yield from read_workflow_states(wire, [workflow_id])
        is_paused = workflow_id in statuses and statuses[workflow_id].is_paused
    return WorkflowOutcome(
        id=workflow_id,
        name=row["name"],
        state=state,
        is_paused=is_paused,
        output=decode_output(workflow_id, row["result"]) if state is WorkflowState.COMPLETED else None,
        failure=decode_failure(failures),
        error=decode_stored_error(row["error"]),
    )


# -- control ---------------------------------------------------------------------------------------------------------


def cancel_workflow(wire: Wire, workflow_id: str) -> Script[CancelledWorkflow]:
    """Cancel a workflow and those inside it. Running nodes run on: the caller tells their workers to stop them."""
    require_control(wire, "cancel")
    before = yield from _cancel_one(wire, workflow_id)
    if before is None:
        raise workflow_not_found(workflow_id)
    if before.is_terminal and before is not WorkflowState.CANCELLED:
        return CancelledWorkflow(CancelOutcome.ALREADY_FINISHED, before)
    for row in (yield wire.of_workflows("find_live_below", id=workflow_id)):
        yield from _cancel_one(wire, row["id"])
    running = yield wire.of_workflows("find_running_node_tasks", id=workflow_id)
    already = before is WorkflowState.CANCELLED
    outcome = CancelOutcome.ALREADY_CANCELLED if already else CancelOutcome.CANCELLED
    return CancelledWorkflow(outcome, before, tuple(row["id"] for row in running))


def _cancel_one(wire: Wire, workflow_id: str) -> Script[WorkflowState | None]:
    """Cancel one workflow; returns the state before, None if there is none."""
    rows = yield wire.of_workflows("lock_workflow", id=workflow_id)
    if not rows:
        return None
    before = decode_workflow_state(workflow_id, rows[0]["status"])
    if before.is_terminal and before is not WorkflowState.CANCELLED:
        return before
    yield wire.of_workflows("lock_node_tasks", id=workflow_id)
    yield wire.of_workflows("lock_nodes", id=workflow_id)
    # A node that was enqueued meanwhile has a task now.
    yield wire.of_workflows("lock_node_tasks", id=workflow_id)
    yield wire.of_workflows("cancel_workflow", id=workflow_id)
    yield wire.of_workflows("stop_waiting_nodes", id=workflow_id)
    yield wire.of_workflows("cancel_node_tasks", id=workflow_id)
    yield wire.of_workflows("skip_nodes", id=workflow_id)
    return before


def pause_workflow(wire: Wire, workflow_id: str) -> Script[list[str]]:
    """Pause a workflow and those inside it; running nodes run on. Returns the ids of those that ran."""
    require_control(wire, "pause")
    yield from _require_existing(wire, workflow_id)
    ids = [row["id"] for row in (yield wire.of_workflows("pause_workflows", id=workflow_id))]
    if ids:
        yield wire.of_workflows("abandon_nodes", ids=ids)
    return ids


def resume_workflow(wire: Wire, workflow_id: str) -> Script[list[str]]:
    """Resume a workflow and those inside it without a worker: the recovery of the workers starts what is due, at its
    next check. Returns the ids of those that were paused."""
    yield from _require_existing(wire, workflow_id)
    return [row["id"] for row in (yield wire.of_workflows("resume_workflows", id=workflow_id))]


def retry_failed_nodes(wire: Wire, workflow_id: str) -> Script[RetriedNodes]:
    """Let the failed nodes of the paused workflows run again when these are resumed."""
    yield from _require_existing(wire, workflow_id)
    rows = yield wire.of_workflows("find_nodes_to_retry", id=workflow_id)
    if not rows:
        raise WorkflowNotPaused(
            f"Workflow {workflow_id} is not paused, and neither is a workflow inside it. Only failed nodes of a paused "
            "workflow can be tried again. Use on_error='pause', so that it pauses when a node fails.",
            task_id=workflow_id,
        )
    failed = [row for row in rows if row["node"] is not None]
    retried = [row for row in failed if not row["has_ended_workflow"]]
    if retried:
        yield wire.of_workflows(
            "retry_nodes",
            workflow_ids=sorted({row["workflow_id"] for row in retried}),
            nodes=[row["node"] for row in retried],
        )
    return RetriedNodes(
        retried=tuple(row["node_id"] for row in retried),
        left=tuple(row["node_id"] for row in failed if row["has_ended_workflow"]),
    )


def require_control(wire: Wire, verb: str) -> None:
    if not wire.schema.has_cancel_function:
        raise SchemaUnsupported(
            f"The horsies tables of this database are older than release 0.4.6, where SQL cannot {verb} a workflow. "
            f"Upgrade horsies, or {verb} the workflow with its own client."
        )
    if not wire.schema.worker_has_started:
        raise SchemaUnsupported(
            f"No horsies worker has ever started on this database, so horsies cannot {verb} a workflow yet. Start a "
            "worker once, then try again."
        )


def _require_existing(wire: Wire, workflow_id: str) -> Script[None]:
    if not (yield from read_statuses(wire, [workflow_id])):
        raise workflow_not_found(workflow_id)


def workflow_not_found(workflow_id: str) -> WorkflowNotFound:
    return WorkflowNotFound(
        f"Workflow {workflow_id} is not in this database: it never existed, or it has ended and is past its retention. "
        "Check the id and the database of the connection.",
        task_id=workflow_id,
    )
