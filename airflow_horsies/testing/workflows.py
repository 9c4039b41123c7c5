"""Workflows of a test: what of them is kept as a task in memory, shown as a workflow."""

from __future__ import annotations

from typing import Any

from airflow_horsies.core.graph import BEGIN_NODE, WRAPPER_KEY, Graph, Node
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.task import TaskFailure, TaskState, TaskView
from airflow_horsies.core.workflow import (
    NodeFailure,
    NodeState,
    NodeView,
    WorkflowOutcome,
    WorkflowState,
    WorkflowStatus,
    WorkflowSummary,
    WorkflowView,
)
from airflow_horsies.testing.outcomes import Outcome, as_json
from airflow_horsies.testing.plan import NewTask


def new_workflow(graph: Graph, encoded: Any) -> NewTask:
    """What stands for a workflow among the tasks: the same rules of submitting apply to it.

    :param encoded: the encoded workflow, which has what the rules ask of an encoded task.
    """
    spec = TaskSpec(task_name=graph.name, queue=graph.queue, priority=graph.priority, good_until=graph.good_until)
    return NewTask(spec=spec, kwargs=arguments_of(graph), encoded=encoded, graph=encoded.graph)


def arguments_of(graph: Graph) -> dict[str, Any]:
    """The parameters of a registered workflow; none of a graph, whose nodes have their own."""
    if not graph.is_wrapper:
        return {}
    (wrapped,) = [node for node in graph.nodes.values() if node.workflow is not None]
    arguments: dict[str, Any] = as_json(dict(wrapped.kwargs))
    return arguments


def status_of(task: TaskView, *, is_paused: bool) -> WorkflowStatus:
    return WorkflowStatus(id=task.id, state=_state_of(task, is_paused=is_paused))


def outcome_of(task: TaskView, new: NewTask, declared: Outcome, *, is_paused: bool) -> WorkflowOutcome:
    state = _state_of(task, is_paused=is_paused)
    error = None if task.result is None else task.result.error
    if is_paused and declared.failure is not None:
        error = declared.failure
    return WorkflowOutcome(
        id=task.id,
        name=task.task_name,
        state=state,
        is_paused=is_paused,
        output=task.result.ok if state is WorkflowState.COMPLETED and task.result is not None else None,
        failure=None if error is None else _failure_of(new, declared, error),
        error=error,
    )


def summary_of(task: TaskView, new: NewTask, *, is_paused: bool) -> WorkflowSummary:
    return WorkflowSummary(
        id=task.id,
        name=task.task_name,
        definition_key=_graph_of(new).definition_key,
        state=_state_of(task, is_paused=is_paused),
        is_paused_inside=False,
        sent_at=task.sent_at,
        started_at=task.sent_at,
        finished_at=task.finished_at,
        changed_at=task.finished_at or task.enqueued_at,
    )


def view_of(task: TaskView, new: NewTask, declared: Outcome, *, is_paused: bool) -> WorkflowView:
    """The workflow with its nodes. Those of a registered workflow are known to its workers only."""
    graph = _graph_of(new)
    failure = outcome_of(task, new, declared, is_paused=is_paused).failure
    failed = None if failure is None else _first_node(graph, failure.path)
    states = _node_states(graph, task, failed)
    return WorkflowView(
        id=task.id,
        name=graph.name,
        definition_key=graph.definition_key,
        state=_state_of(task, is_paused=is_paused),
        on_error=graph.on_error,
        depth=0,
        sent_at=task.sent_at,
        started_at=task.sent_at,
        finished_at=task.finished_at,
        output=graph.output,
        nodes=tuple(
            NodeView(
                index=index,
                name=name,
                task_name=node.runs,
                state=states[name],
                is_workflow=node.workflow is not None,
                queue=node.queue or graph.queue,
                after=node.dependencies,
                args_from=node.args_from,
                join=node.join,
                min_success=node.min_success,
                allow_failed=node.allow_failed,
                task_id=task.id if states[name] is NodeState.ENQUEUED else None,
                started_at=task.started_at if states[name].is_terminal else None,
                finished_at=task.finished_at if states[name].is_terminal else None,
            )
            for index, (name, node) in enumerate(graph.nodes.items())
        ),
    )


def _graph_of(new: NewTask) -> Graph:
    assert new.graph is not None  # noqa: S101 - only workflows get here
    return new.graph


def _state_of(task: TaskView, *, is_paused: bool) -> WorkflowState:
    if task.state.is_terminal:
        return WorkflowState(task.state)
    return WorkflowState.PAUSED if is_paused else WorkflowState.RUNNING


def _failure_of(new: NewTask, declared: Outcome, error: TaskFailure) -> NodeFailure:
    graph = _graph_of(new)
    roots = [name for name, node in graph.nodes.items() if not node.dependencies]
    path = [graph.name] if graph.is_wrapper else []
    if declared.node is None:
        path = [roots[0]] if declared.never_starts else path or [graph.output or list(graph.nodes)[-1]]
    else:
        path += declared.node.split("/")
    known = graph.nodes.get(path[-1])
    return NodeFailure(path=tuple(path), task_name=graph.name if known is None else known.runs, error=error)


def _first_node(graph: Graph, path: tuple[str, ...]) -> str:
    """The node of the outermost workflow that a path leads through."""
    if path[0] in graph.nodes:
        return path[0]
    return next(name for name in graph.nodes if name != BEGIN_NODE or graph.definition_key != WRAPPER_KEY)


def _node_states(graph: Graph, task: TaskView, failed: str | None) -> dict[str, NodeState]:
    states: dict[str, NodeState] = {}
    for name, node in graph.nodes.items():
        if failed is not None:
            state = NodeState.FAILED if name == failed else NodeState.COMPLETED
            if name != failed and _waits_for(graph, node, failed):
                state = NodeState.SKIPPED if task.state.is_terminal else NodeState.PENDING
        elif task.state is TaskState.COMPLETED:
            state = NodeState.COMPLETED
        elif task.state.is_terminal:
            state = NodeState.SKIPPED
        elif node.dependencies:
            state = NodeState.PENDING
        else:
            state = NodeState.RUNNING if task.state is TaskState.RUNNING else NodeState.ENQUEUED
        states[name] = state
    return states


def _waits_for(graph: Graph, node: Node, other: str) -> bool:
    return any(name == other or _waits_for(graph, graph.nodes[name], other) for name in node.dependencies)
