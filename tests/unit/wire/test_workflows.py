from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_horsies.core.graph import WRAPPER_KEY, wrap_definition
from airflow_horsies.exceptions import SchemaUnsupported, TaskIdTaken, WireError, WorkflowNotFound, WorkflowNotPaused
from airflow_horsies.models import CancelOutcome, Graph, NodeState, RetriedNodes, WorkflowState, node, ref
from airflow_horsies.wire import workflows
from airflow_horsies.wire.graphs import encode_workflow
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import IN_PLACE, MOVED, drive

ID = "0198a0de-0000-7000-8000-000000000001"
INNER = "0198a0de-0000-7000-8000-000000000002"
WIRE = Wire(MOVED)
GRAPH = Graph(name="g", nodes={"a": node("t", n=1), "b": node("t", x=ref("a"))}, output="b")


def stored(workflow_id: str = ID, **changed: Any) -> list[dict[str, Any]]:
    """The rows of a workflow as horsies keeps them."""
    encoded = encode_workflow(GRAPH, workflow_id=workflow_id)
    known = {"id": workflow_id, "name": "g", "status": "RUNNING", "definition_key": encoded.graph.definition_key}
    return [
        {
            **known,
            "task_index": one.index,
            "node_id": one.name,
            "task_name": one.node.runs,
            "is_subworkflow": False,
            "task_kwargs": one.kwargs,
            "dependencies": list(one.dependencies),
            "args_from": json.dumps(one.args_from) if one.args_from else None,
            "join_type": "all",
            "min_success": None,
            "allow_failed_deps": False,
            **changed,
        }
        for one in encoded.nodes
    ]


def test_id_that_is_new_is_started() -> None:
    encoded = encode_workflow(GRAPH, workflow_id=ID)
    driven = drive(workflows.start_workflow(WIRE, encoded), {"moved/start_workflow": [{"id": ID}]})
    assert (driven.outcome, driven.names) == (True, ["moved/start_workflow"])


def test_id_of_the_same_graph_is_not_started_again() -> None:
    encoded = encode_workflow(GRAPH, workflow_id=ID)
    driven = drive(workflows.start_workflow(WIRE, encoded), {"moved/find_workflow_commands": stored()})
    assert driven.outcome is False


@pytest.mark.parametrize(
    "changed",
    [{"name": "other"}, {"task_kwargs": "{}"}, {"task_name": "u"}, {"join_type": "any"}, {"definition_key": None}],
    ids=str,
)
def test_id_of_another_graph_is_refused(changed: dict[str, Any]) -> None:
    encoded = encode_workflow(GRAPH, workflow_id=ID)
    with pytest.raises(TaskIdTaken, match=ID):
        drive(workflows.start_workflow(WIRE, encoded), {"moved/find_workflow_commands": stored(**changed)})


def test_retention_class_is_checked_before_anything_is_inserted() -> None:
    encoded = encode_workflow(wrap_definition("w", queue="q"), workflow_id=ID, classes={"q": "q_q_7d"})
    answers = {
        "moved/read_retention_classes": [{"class_key": "q_q_7d", "duration": None}],
        "moved/start_workflow": [{"id": ID}],
    }
    driven = drive(workflows.start_workflow(WIRE, encoded), answers)
    assert driven.names == ["moved/read_retention_classes", "moved/start_workflow"]


# -- cancelling ------------------------------------------------------------------------------------------------------

ONE = ["lock_workflow", "lock_node_tasks", "lock_nodes", "lock_node_tasks", "cancel_workflow", "stop_waiting_nodes"]
ONE += ["cancel_node_tasks", "skip_nodes"]


@pytest.mark.parametrize("schema", [MOVED, IN_PLACE], ids=["moved", "in place"])
def test_cancel_locks_the_workflow_first_and_goes_down(schema: Any) -> None:
    generation = str(schema.generation)
    driven = drive(
        workflows.cancel_workflow(Wire(schema), ID),
        {
            f"{generation}/lock_workflow": [{"status": "RUNNING"}],
            f"{generation}/find_live_below": [{"id": INNER}],
            f"{generation}/find_running_node_tasks": [{"id": "a-task"}],
        },
    )
    assert (driven.outcome.outcome, driven.outcome.running) == (CancelOutcome.CANCELLED, ("a-task",))
    names = [name.removeprefix(f"{generation}/") for name in driven.names]
    assert names == [*ONE, "find_live_below", *ONE, "find_running_node_tasks"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("PAUSED", CancelOutcome.CANCELLED),
        ("CANCELLED", CancelOutcome.ALREADY_CANCELLED),
        ("COMPLETED", CancelOutcome.ALREADY_FINISHED),
        ("FAILED", CancelOutcome.ALREADY_FINISHED),
        ("EXPIRED", CancelOutcome.ALREADY_FINISHED),
    ],
)
def test_cancel_says_what_it_found(status: str, outcome: CancelOutcome) -> None:
    driven = drive(workflows.cancel_workflow(WIRE, ID), {"moved/lock_workflow": [{"status": status}]})
    assert driven.outcome.outcome is outcome
    if outcome is CancelOutcome.ALREADY_FINISHED:
        assert driven.names == ["moved/lock_workflow"]


def test_what_cannot_be_cancelled_says_why() -> None:
    with pytest.raises(WorkflowNotFound, match=ID):
        drive(workflows.cancel_workflow(WIRE, ID))
    with pytest.raises(SchemaUnsupported, match=r"older than release 0\.4\.6"):
        drive(workflows.cancel_workflow(Wire(replace(IN_PLACE, has_cancel_function=False)), ID))
    with pytest.raises(SchemaUnsupported, match="No horsies worker has ever started"):
        drive(workflows.pause_workflow(Wire(replace(MOVED, worker_has_started=False)), ID))
    with pytest.raises(WireError, match="'GONE'"):
        drive(workflows.cancel_workflow(WIRE, ID), {"moved/lock_workflow": [{"status": "GONE"}]})


# -- pausing ---------------------------------------------------------------------------------------------------------

EXISTING = {"moved/read_workflow_statuses": [{"id": ID, "status": "RUNNING"}]}


def test_pause_gives_claimed_tasks_back() -> None:
    driven = drive(workflows.pause_workflow(WIRE, ID), {**EXISTING, "moved/pause_workflows": [{"id": ID}]})
    assert driven.outcome == [ID]
    assert driven.params("moved/abandon_nodes") == {"ids": [ID]}
    assert drive(workflows.pause_workflow(WIRE, ID), EXISTING).outcome == []


def test_failed_tasks_of_paused_workflows_are_tried_again_and_ended_workflows_are_left() -> None:
    rows = [
        {"workflow_id": ID, "node": "n1", "node_id": "a", "has_ended_workflow": False},
        {"workflow_id": ID, "node": "n2", "node_id": "b", "has_ended_workflow": True},
        {"workflow_id": INNER, "node": None, "node_id": None, "has_ended_workflow": None},
    ]
    driven = drive(workflows.retry_failed_nodes(WIRE, ID), {**EXISTING, "moved/find_nodes_to_retry": rows})
    assert driven.outcome == RetriedNodes(retried=("a",), left=("b",))
    assert driven.params("moved/retry_nodes") == {"workflow_ids": [ID], "nodes": ["n1"]}
    with pytest.raises(WorkflowNotPaused, match="is not paused"):
        drive(workflows.retry_failed_nodes(WIRE, ID), EXISTING)


# -- reading ---------------------------------------------------------------------------------------------------------


def tree_row(workflow_id: str, index: int, name: str, **more: Any) -> dict[str, Any]:
    return {
        "workflow_id": workflow_id,
        "name": "g",
        "status": "RUNNING",
        "on_error": "fail",
        "definition_key": None,
        "output_task_index": 1,
        "depth": 0,
        "parent_workflow_id": None,
        "parent_task_index": None,
        "sent_at": None,
        "started_at": None,
        "finished_at": None,
        "error": None,
        "task_index": index,
        "node_id": name,
        "task_name": "t",
        "node_status": "RUNNING",
        "is_subworkflow": False,
        "queue_name": "default",
        "dependencies": [],
        "args_from": None,
        "join_type": "all",
        "min_success": None,
        "allow_failed_deps": False,
        "task_id": None,
        "sub_workflow_id": None,
        "node_started_at": None,
        "node_finished_at": None,
        "result": None,
        "is_result_cut": False,
        **more,
    }


def test_tree_holds_the_workflows_inside() -> None:
    rows = [
        tree_row(ID, 0, "a", is_subworkflow=True, sub_workflow_id=INNER),
        tree_row(ID, 1, "b", dependencies=[0], args_from='{"x":0}', node_status="PENDING"),
        tree_row(
            INNER,
            0,
            "c",
            depth=1,
            parent_workflow_id=ID,
            parent_task_index=0,
            status="CANCELLED",
            node_status="SKIPPED",
        ),
    ]
    view = drive(workflows.read_workflow(WIRE, ID), {"moved/read_workflow": rows}).outcome
    first, second = view.nodes
    assert first.workflow is not None
    assert (first.state, first.shown_state, first.workflow.nodes[0].state) == (
        *(NodeState.RUNNING, "CANCELLED", NodeState.SKIPPED),
    )
    assert (second.after, second.args_from, view.output, view.is_cut) == (("a",), {"x": "a"}, "b", False)


def test_tree_with_more_nodes_than_asked_for_is_cut() -> None:
    rows = [tree_row(ID, number, f"n{number}") for number in range(3)]
    driven = drive(workflows.read_workflow(WIRE, ID, limit=2), {"moved/read_workflow": rows})
    assert driven.params("moved/read_workflow")["limit"] == 3
    assert (driven.outcome.is_cut, len(driven.outcome.nodes)) == (True, 2)


OK = '{"__h_task_result__":true,"ok":7,"err":null}'
LOOSE = json.dumps(
    {
        "__h_task_result__": True,
        "__h_outputless_terminals__": True,
        "ok": {"results_by_id": {"a": json.loads(OK), "b": None}, "task_name_by_id": {}, "definition_key_by_id": {}},
        "err": None,
    }
)


@pytest.mark.parametrize(
    ("result", "output"), [(OK, 7), (LOOSE, {"a": 7, "b": None}), ("null", None), (None, None)], ids=str
)
def test_output_is_the_value_of_the_output_node_or_those_of_the_last(result: str | None, output: object) -> None:
    row = {"id": ID, "name": "g", "status": "COMPLETED", "definition_key": None, "result": result, "error": None}
    driven = drive(workflows.read_outcome(WIRE, ID), {"moved/read_workflow_end": [row]})
    assert (driven.outcome.state, driven.outcome.output) == (WorkflowState.COMPLETED, output)
    assert driven.names == ["moved/read_workflow_end"]


def failed(name: str, error: object, **more: Any) -> dict[str, Any]:
    result = json.dumps({"__h_task_result__": True, "ok": None, "err": error})
    known = {"workflow_id": ID, "path": [], "node_id": name, "task_name": "t", "task_id": None, "result": result}
    return {
        **known,
        "is_subworkflow": False,
        "sub_definition_key": None,
        "definition_key": None,
        "sub_workflow_id": None,
        **more,
    }


def test_failure_is_the_innermost_node_that_failed_first() -> None:
    builtin = {"error_code": {"__builtin_task_code__": "SUBWORKFLOW_FAILED"}, "message": "inside"}
    rows = [
        failed("check", {"error_code": "BROKEN", "message": "no"}, workflow_id=INNER, path=["flights.month"]),
        failed("workflow", builtin, is_subworkflow=True, sub_workflow_id=INNER, definition_key=WRAPPER_KEY),
    ]
    row = {"id": ID, "name": "g", "status": "FAILED", "definition_key": None, "result": None}
    answers = {"moved/read_workflow_end": [{**row, "error": json.dumps(builtin)}], "moved/find_failed_nodes": rows}
    outcome = drive(workflows.read_outcome(WIRE, ID), answers).outcome
    assert outcome.failure is not None
    assert str(outcome.failure) == "flights.month/check: BROKEN: no"
    assert outcome.error is not None and outcome.error.error_code == "SUBWORKFLOW_FAILED"


def test_workflow_that_could_not_be_loaded_goes_by_its_key() -> None:
    rows = [
        failed(
            "workflow",
            {"error_code": "SUBWORKFLOW_LOAD_FAILED", "message": "unknown"},
            is_subworkflow=True,
            sub_definition_key="flights.month",
            definition_key=WRAPPER_KEY,
        )
    ]
    row = {"id": ID, "name": "g", "status": "FAILED", "definition_key": WRAPPER_KEY, "result": None, "error": "text"}
    answers = {"moved/read_workflow_end": [row], "moved/find_failed_nodes": rows}
    outcome = drive(workflows.read_outcome(WIRE, ID), answers).outcome
    assert outcome.failure is not None and outcome.failure.path == ("flights.month",)
    assert outcome.error is not None and outcome.error.message == "text"


def test_cancelled_workflow_has_neither_output_nor_error() -> None:
    row = {"id": ID, "name": "g", "status": "CANCELLED", "definition_key": None, "result": None, "error": None}
    outcome = drive(workflows.read_outcome(WIRE, ID), {"moved/read_workflow_end": [row]}).outcome
    assert (outcome.output, outcome.failure, outcome.error, outcome.message) == (None, None, None, "cancelled")
