"""A workflow as stored in the database: its state, its nodes and its outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

from airflow_horsies.core.task import TaskFailure, TaskResult, TaskState
from airflow_horsies.exceptions import InvalidTask

# How many nodes of a workflow are read at once, and how long a result may be to be read with them.
READ_NODES = 2_000
RESULT_CHARS = 2_000


class WorkKind(StrEnum):
    """What a task instance has submitted."""

    TASK = "TASK"
    WORKFLOW = "WORKFLOW"


class OnPaused(StrEnum):
    """What an Airflow task does when its workflow is paused."""

    WAIT = "wait"
    FAIL = "fail"
    CANCEL = "cancel"


class WorkflowAction(StrEnum):
    """What a person can do with a workflow."""

    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    SIGNAL = "signal"
    CANCEL = "cancel"


class WorkflowState(StrEnum):
    """The states of a horsies workflow."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    # Paused for longer than the workers allow.
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_WORKFLOW_STATES

    @property
    def as_task_state(self) -> TaskState:
        """The state of a task that a task instance treats in the same way."""
        match self:
            case WorkflowState.PENDING | WorkflowState.RUNNING | WorkflowState.PAUSED:
                return TaskState.RUNNING
            case WorkflowState.COMPLETED:
                return TaskState.COMPLETED
            case WorkflowState.FAILED:
                return TaskState.FAILED
            case WorkflowState.CANCELLED:
                return TaskState.CANCELLED
            case WorkflowState.EXPIRED:
                return TaskState.EXPIRED
            case _:
                assert_never(self)


TERMINAL_WORKFLOW_STATES = frozenset(
    {WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELLED, WorkflowState.EXPIRED}
)
LIVE_WORKFLOW_STATES = frozenset(WorkflowState) - TERMINAL_WORKFLOW_STATES


class NodeState(StrEnum):
    """The states of a node of a workflow."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_NODE_STATES


TERMINAL_NODE_STATES = frozenset({NodeState.COMPLETED, NodeState.FAILED, NodeState.SKIPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStatus:
    """The state of a workflow, and whether a workflow inside it is paused, which does not change its own state."""

    id: str
    state: WorkflowState
    is_paused_inside: bool = False

    @property
    def is_paused(self) -> bool:
        """Whether it, or a workflow inside it, waits for somebody to resume or cancel it."""
        if self.state.is_terminal:
            return False
        return self.state is WorkflowState.PAUSED or self.is_paused_inside


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow in a listing, without its nodes.

    :param name: of a registered workflow that was started by its key, the key.
    :param changed_at: when its state changed last.
    :param finished_at: when it reached a terminal state.
    """

    id: str
    name: str
    definition_key: str | None
    state: WorkflowState
    is_paused_inside: bool
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    changed_at: datetime

    @property
    def is_paused(self) -> bool:
        """Whether it, or a workflow inside it, waits for somebody to resume or cancel it."""
        return self.state is WorkflowState.PAUSED or self.is_paused_inside


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node of a workflow as currently stored.

    :param name: unique in its workflow.
    :param task_name: the name of its task; of a workflow, that of its definition.
    :param after: the names of the nodes that it waits for.
    :param args_from: the nodes whose results it gets, by argument.
    :param task_id: the horsies task that runs it, once there is one.
    :param result: None until it has ended, and if the stored text is longer than was asked for.
    :param is_result_cut: whether the result was left out because of its length.
    :param workflow: of a node that is a workflow, the workflow that runs it, once it has started.
    """

    index: int
    name: str
    task_name: str
    state: NodeState
    is_workflow: bool = False
    queue: str = ""
    after: tuple[str, ...] = ()
    args_from: Mapping[str, str] = field(default_factory=dict)
    join: str = "all"
    min_success: int | None = None
    allow_failed: bool = False
    task_id: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: TaskResult | None = None
    is_result_cut: bool = False
    workflow: WorkflowView | None = None

    @property
    def shown_state(self) -> str:
        """As its state; of a workflow that has started, the state of that: horsies leaves the node of a cancelled
        workflow RUNNING."""
        if self.workflow is not None and not self.state.is_terminal:
            return self.workflow.state.value
        return self.state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowView:
    """A workflow as currently stored, with its nodes and the workflows inside it.

    :param definition_key: of the definition that built it.
    :param finished_at: when it reached a terminal state.
    :param error: why it failed or was paused, as horsies recorded it; of the first failed node.
    :param is_cut: whether it has more nodes than were asked for.
    """

    id: str
    name: str
    definition_key: str | None
    state: WorkflowState
    on_error: str
    depth: int
    sent_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    output: str | None = None
    error: TaskFailure | None = None
    nodes: tuple[NodeView, ...] = ()
    is_cut: bool = False

    def walk(self) -> Iterator[tuple[tuple[str, ...], NodeView]]:
        """Every node of the tree with the names on the way to it."""
        for node in self.nodes:
            yield (node.name,), node
            if node.workflow is not None:
                for path, inner in node.workflow.walk():
                    yield (node.name, *path), inner

    @property
    def is_paused_inside(self) -> bool:
        return any(node.workflow is not None and node.workflow.is_paused for node in self.nodes)

    @property
    def is_paused(self) -> bool:
        """Whether it, or a workflow inside it, waits for somebody to resume or cancel it."""
        return self.state is WorkflowState.PAUSED or self.is_paused_inside

    @property
    def parts(self) -> Iterator[WorkflowView]:
        """The workflow and those inside it, outer ones first."""
        yield self
        for node in self.nodes:
            if node.workflow is not None:
                yield from node.workflow.parts

    @property
    def actions(self) -> list[WorkflowAction]:
        """What makes sense now."""
        if self.state.is_terminal:
            return []
        states = {part.state for part in self.parts}
        possible = {
            WorkflowAction.PAUSE: WorkflowState.RUNNING in states,
            WorkflowAction.RESUME: WorkflowState.PAUSED in states,
            WorkflowAction.RETRY: any(part.has_nodes_to_retry for part in self.parts),
        }
        return [action for action in WorkflowAction if possible.get(action, True)]

    @property
    def has_nodes_to_retry(self) -> bool:
        """Whether it is paused with a failed node. A node whose workflow has ended cannot be tried again."""
        return self.state is WorkflowState.PAUSED and any(
            node.state is NodeState.FAILED and node.workflow is None for node in self.nodes
        )


def require_workflow_states(states: Collection[str]) -> frozenset[WorkflowState]:
    """As require_states, for workflows."""
    if isinstance(states, str):
        raise InvalidTask("states", f"must be a list of states, not the string {states!r}")
    for state in states:
        if state not in set(WorkflowState):
            raise InvalidTask("states", f"must only contain {', '.join(WorkflowState)}, not {state!r}")
    return frozenset(WorkflowState(state) for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A node that failed, and why.

    :param path: the names of the nodes that lead to it, from the outermost workflow.
    :param task_id: the horsies task that failed; None if the node never had one.
    """

    path: tuple[str, ...]
    task_name: str
    error: TaskFailure
    task_id: str | None = None

    def __str__(self) -> str:
        code = self.error.error_code or "FAILED"
        return f"{'/'.join(self.path)}: {code}: {self.error.message or 'no message'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOutcome:
    """How far a workflow is, and what it returned.

    :param output: the value of its output node; without an output node, the values of its last nodes by name, None for
        one that did not complete. None unless it completed.
    :param is_paused: whether it, or a workflow inside it, waits for somebody to resume or cancel it.
    :param failure: the innermost node that failed first; also of a workflow that is paused because of it.
    :param error: why it failed as horsies recorded it; of an expired one, which rule of the workers ended it.
    """

    id: str
    name: str
    state: WorkflowState
    is_paused: bool = False
    output: Any = None
    failure: NodeFailure | None = None
    error: TaskFailure | None = None

    @property
    def message(self) -> str:
        """Why it did not complete, in one sentence or two."""
        if self.failure is not None:
            return str(self.failure)
        if self.error is not None:
            return f"{self.error.error_code or self.state}: {self.error.message or 'no message'}"
        return self.state.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedNodes:
    """What a retry of the failed nodes of a paused workflow did.

    :param retried: the names of the nodes that run again.
    :param left: the names of failed nodes that are workflows, which cannot be tried again.
    """

    retried: tuple[str, ...]
    left: tuple[str, ...] = ()
