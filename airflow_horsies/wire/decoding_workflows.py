"""Decodes the rows of workflows and nodes into frozen values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from airflow_horsies.core.graph import WRAPPER_KEY
from airflow_horsies.core.task import TaskFailure, TaskResult
from airflow_horsies.core.workflow import NodeFailure, NodeState, NodeView, WorkflowState, WorkflowSummary, WorkflowView
from airflow_horsies.db.statement import Row
from airflow_horsies.exceptions import WireError
from airflow_horsies.wire.decoding import decode_error, decode_result, unreadable, utc

# Marks the values of the last nodes of a workflow that has no output node.
OUTPUTLESS_MARK = "__h_outputless_terminals__"


def decode_workflow_state(workflow_id: str, status: str) -> WorkflowState:
    try:
        return WorkflowState(status)
    except ValueError:
        raise WireError(
            f"Workflow {workflow_id} has the status {status!r}, which this release does not know. Upgrade "
            "airflow-horsies."
        ) from None


def decode_identity(workflow_id: str, rows: Sequence[Row]) -> tuple[object, ...]:
    """What a stored workflow is, comparable with EncodedWorkflow.identity."""
    nodes = [row for row in rows if row["task_index"] is not None]
    return (
        rows[0]["name"],
        rows[0]["definition_key"],
        tuple(
            (
                row["task_index"],
                row["node_id"],
                row["task_name"],
                row["is_subworkflow"],
                row["task_kwargs"],
                tuple(row["dependencies"]),
                _loads(workflow_id, "args_from", row["args_from"]) or {},
                row["join_type"],
                row["min_success"],
                row["allow_failed_deps"],
            )
            for row in nodes
        ),
    )


def decode_summary(row: Row) -> WorkflowSummary:
    """A row of list_workflows."""
    return WorkflowSummary(
        id=row["id"],
        name=row["name"],
        definition_key=row["definition_key"],
        state=decode_workflow_state(row["id"], row["status"]),
        is_paused_inside=row["is_paused_inside"],
        sent_at=utc(row["sent_at"]),
        started_at=utc(row["started_at"]),
        finished_at=utc(row["finished_at"]),
        changed_at=row["updated_at"].astimezone(UTC),
    )


def decode_tree(workflow_id: str, rows: Sequence[Row], *, is_cut: bool) -> WorkflowView:
    """:param rows: of read_workflow, outer workflows first."""
    by_workflow: dict[str, list[Row]] = {}
    for row in rows:
        by_workflow.setdefault(row["workflow_id"], []).append(row)
    inner = {(nodes[0]["parent_workflow_id"], nodes[0]["parent_task_index"]): one for one, nodes in by_workflow.items()}
    # Inner workflows first, so that the nodes around them can hold them. A workflow that was started again has the
    # same place; the one that its node names counts.
    views: dict[str, WorkflowView] = {}
    for one, nodes in reversed(by_workflow.items()):
        views[one] = _decode_workflow(one, nodes, views, inner, is_cut=is_cut and one == workflow_id)
    return views[workflow_id]


def _decode_workflow(
    workflow_id: str,
    rows: Sequence[Row],
    views: Mapping[str, WorkflowView],
    inner: Mapping[tuple[str, int], str],
    *,
    is_cut: bool,
) -> WorkflowView:
    row = rows[0]
    nodes = [each for each in rows if each["task_index"] is not None]
    names = {each["task_index"]: _name_of(each) for each in nodes}
    return WorkflowView(
        id=workflow_id,
        name=row["name"],
        definition_key=row["definition_key"],
        state=decode_workflow_state(workflow_id, row["status"]),
        on_error=row["on_error"],
        depth=row["depth"],
        sent_at=utc(row["sent_at"]),
        started_at=utc(row["started_at"]),
        finished_at=utc(row["finished_at"]),
        output=names.get(row["output_task_index"]),
        error=decode_stored_error(row["error"]),
        nodes=tuple(_decode_node(workflow_id, each, names, views, inner) for each in nodes),
        is_cut=is_cut,
    )


def _decode_node(
    workflow_id: str,
    row: Row,
    names: Mapping[int, str],
    views: Mapping[str, WorkflowView],
    inner: Mapping[tuple[str, int], str],
) -> NodeView:
    index = row["task_index"]
    args_from = _loads(workflow_id, "args_from", row["args_from"]) or {}
    inside = row["sub_workflow_id"] or inner.get((workflow_id, index))
    return NodeView(
        index=index,
        name=names[index],
        task_name=row["task_name"],
        state=_decode_node_state(workflow_id, row["node_status"]),
        is_workflow=row["is_subworkflow"],
        queue=row["queue_name"],
        after=tuple(names.get(other, str(other)) for other in row["dependencies"]),
        args_from={argument: names.get(other, str(other)) for argument, other in args_from.items()},
        join=row["join_type"],
        min_success=row["min_success"],
        allow_failed=row["allow_failed_deps"],
        task_id=row["task_id"],
        started_at=utc(row["node_started_at"]),
        finished_at=utc(row["node_finished_at"]),
        result=_decode_node_result(workflow_id, row["result"]),
        is_result_cut=row["is_result_cut"],
        workflow=views.get(inside) if inside is not None and row["is_subworkflow"] else None,
    )


def _name_of(row: Row) -> str:
    # Nodes of releases before 0.1.3 have none.
    return row["node_id"] or str(row["task_index"])


def _decode_node_state(workflow_id: str, status: str) -> NodeState:
    try:
        return NodeState(status)
    except ValueError:
        raise WireError(
            f"A node of workflow {workflow_id} has the status {status!r}, which this release does not know. Upgrade "
            "airflow-horsies."
        ) from None


def _decode_node_result(workflow_id: str, text: str | None) -> TaskResult | None:
    """The result of a node; a node that was skipped as an output is ``null``."""
    if text is None or text == "null":
        return None
    return decode_result(workflow_id, text, error_code=None)


def decode_output(workflow_id: str, text: str | None) -> Any:
    """The value of a completed workflow; without an output node, those of its last nodes by name."""
    # An output node that was skipped.
    if text is None or text == "null":
        return None
    result = decode_result(workflow_id, text, error_code=None)
    if result is None or result.error is not None:
        return None
    envelope = _loads(workflow_id, "result", text)
    if not (isinstance(envelope, dict) and envelope.get(OUTPUTLESS_MARK)):
        return result.ok
    by_id = result.ok.get("results_by_id") if isinstance(result.ok, dict) else None
    if not isinstance(by_id, dict):
        raise unreadable(f"The result of workflow {workflow_id} does not name its nodes.")
    return {name: _value_of(workflow_id, one) for name, one in by_id.items()}


def _value_of(workflow_id: str, envelope: Any) -> Any:
    if envelope is None:
        return None
    result = decode_result(workflow_id, json.dumps(envelope), error_code=None)
    return None if result is None else result.ok


def decode_failure(rows: Sequence[Row]) -> NodeFailure | None:
    """The innermost failed node that failed first.

    :param rows: of find_failed_nodes.
    """
    failed_inside = {row["workflow_id"] for row in rows}
    causes = [row for row in rows if not (row["is_subworkflow"] and row["sub_workflow_id"] in failed_inside)]
    if not causes:
        return None
    row = causes[0]
    name = row["node_id"]
    if row["definition_key"] == WRAPPER_KEY and row["is_subworkflow"]:
        name = row["sub_definition_key"] or name
    return NodeFailure(
        path=(*row["path"], name),
        task_name=row["task_name"],
        task_id=row["task_id"],
        error=_decode_node_error(row["result"]),
    )


def _decode_node_error(text: str | None) -> TaskFailure:
    unknown = TaskFailure(error_code=None, message=None)
    try:
        envelope = json.loads(text or "null")
    except ValueError:
        # Its text was longer than what is read.
        return TaskFailure(error_code=None, message=(text or "")[:1_000])
    if not isinstance(envelope, dict) or not isinstance(envelope.get("err"), dict):
        return unknown
    return decode_error(envelope["err"], error_code=None)


def decode_stored_error(text: str | None) -> TaskFailure | None:
    """The error of a workflow, which horsies stores without an envelope, or as plain text."""
    if text is None:
        return None
    try:
        error = json.loads(text)
    except ValueError:
        return TaskFailure(error_code=None, message=text)
    if isinstance(error, dict) and isinstance(error.get("err"), dict):
        error = error["err"]
    return (
        decode_error(error, error_code=None) if isinstance(error, dict) else TaskFailure(error_code=None, message=text)
    )


def _loads(workflow_id: str, column: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise unreadable(f"The {column} of workflow {workflow_id} cannot be read as JSON.") from None
