from __future__ import annotations

import pytest

from airflow_horsies.models import (
    LIVE_WORKFLOW_STATES,
    NodeFailure,
    NodeState,
    NodeView,
    TaskFailure,
    TaskState,
    WorkflowOutcome,
    WorkflowState,
    WorkflowStatus,
    WorkflowView,
)


def make_view(state: WorkflowState = WorkflowState.RUNNING, *nodes: NodeView) -> WorkflowView:
    return WorkflowView(
        id="w",
        name="w",
        definition_key=None,
        state=state,
        on_error="fail",
        depth=0,
        sent_at=None,
        started_at=None,
        finished_at=None,
        nodes=nodes,
    )


@pytest.mark.parametrize("state", WorkflowState)
def test_state_is_treated_as_that_of_a_task(state: WorkflowState) -> None:
    assert state.as_task_state.is_terminal is state.is_terminal
    live = state in LIVE_WORKFLOW_STATES
    assert state.as_task_state == (TaskState.RUNNING if live else TaskState(state.value))


def test_pause_counts_while_it_lasts() -> None:
    assert WorkflowStatus(id="w", state=WorkflowState.PAUSED).is_paused
    assert WorkflowStatus(id="w", state=WorkflowState.RUNNING, is_paused_inside=True).is_paused
    assert not WorkflowStatus(id="w", state=WorkflowState.CANCELLED, is_paused_inside=True).is_paused


def test_tree_is_walked_with_the_names_on_the_way() -> None:
    inner = make_view(WorkflowState.PAUSED, NodeView(index=0, name="b", task_name="t", state=NodeState.FAILED))
    node = NodeView(index=0, name="a", task_name="w", state=NodeState.RUNNING, is_workflow=True, workflow=inner)
    view = make_view(WorkflowState.RUNNING, node)
    assert [path for path, _ in view.walk()] == [("a",), ("a", "b")]
    assert (view.is_paused, view.is_paused_inside, node.shown_state) == (True, True, "PAUSED")


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (
            {"failure": NodeFailure(path=("a", "b"), task_name="t", error=TaskFailure(error_code="X", message="no"))},
            "a/b: X: no",
        ),
        ({"error": TaskFailure(error_code="WORKFLOW_EXPIRED", message="too old")}, "WORKFLOW_EXPIRED: too old"),
        ({}, "failed"),
    ],
    ids=["node", "workflow", "nothing"],
)
def test_outcome_says_why(outcome: dict[str, object], message: str) -> None:
    known = {"id": "w", "name": "w", "state": WorkflowState.FAILED}
    assert WorkflowOutcome(**known, **outcome).message == message  # type: ignore[arg-type]
