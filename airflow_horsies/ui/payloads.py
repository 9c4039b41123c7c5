"""Every JSON response of the routes. The page scripts read these names: add, never rename.

``make payloads`` writes them as types to ``static/payloads.d.ts``, which the scripts are checked against. An
``error_url`` leads to the explanation of the error code; None if there is none or ``[horsies] docs_url`` is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from airflow_horsies.core.callback import CallbackState
from airflow_horsies.core.catalog import KnownKind
from airflow_horsies.core.cluster import QueueDepth
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState
from airflow_horsies.core.values import AttemptValues, LineValues, ProgressValues
from airflow_horsies.core.workflow import WorkflowAction, WorkflowState, WorkKind

SegmentKind: TypeAlias = Literal["waiting", "claimed", "running", "backing off", "parked"]
EventKind: TypeAlias = Literal[
    "sent",
    "started",
    "parked",
    "failed, will be retried",
    "pending",
    "claimed",
    "running",
    "completed",
    "failed",
    "cancelled",
    "expired",
]

# -- any route --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """RFC 9457."""

    status: int
    title: str
    detail: str


# -- a task instance --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A try with Airflow's number; its state is ``lost`` if Airflow has no record of it."""

    try_number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    state: TaskState
    queue: str
    priority: int
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    next_retry_at: datetime | None
    good_until: datetime | None
    retry_count: int
    max_retries: int
    worker_id: str | None
    hostname: str | None
    pid: int | None
    error_code: str | None
    failed_reason: str | None
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(AttemptValues):
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSegment:
    """A period of a task's time; it has no end while it lasts."""

    kind: SegmentKind
    start: datetime
    end: datetime | None
    outcome: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(RunSegment):
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """``task`` is None if horsies no longer keeps it. An item of a chunk has a ``number`` there, and its own outcome in
    the fields of the task."""

    horsies_task_id: str
    task_name: str
    queue: str
    position: int
    life: int
    round: int
    try_number: int
    submitted_at: datetime
    good_until: datetime | None
    task: Task | None
    attempts: Sequence[Attempt]
    segments: Sequence[Segment]
    progress: ProgressValues | None
    number: int | None = None
    kind: WorkKind = WorkKind.TASK
    workflow_state: WorkflowState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Lines of one submission; ``more`` if there are further lines to read at once."""

    life: int
    round: int
    may_read: bool
    lines: Sequence[LineValues]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal to a submission. ``value`` is None for users who may not read values."""

    life: int
    round: int
    name: str
    sent_at: datetime
    sent_by: str | None
    received_at: datetime | None
    received_attempt: int | None
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A task that has parked; of a workflow, the task of a node. A timer has no ``name``."""

    life: int
    round: int
    horsies_task_id: str
    name: str | None
    attempt: int
    times: int
    start: datetime
    end: datetime | None
    due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """Nothing of its tokens. ``value`` is the answer."""

    life: int
    number: int
    state: CallbackState
    opened_at: datetime
    expires_at: datetime
    heartbeats: int
    heartbeat_at: datetime | None
    closed_at: datetime | None
    answered_from: str | None
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A workflow that is paused now: the submitted one, or one inside it."""

    life: int
    round: int
    workflow_id: str
    name: str
    start: datetime
    is_inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The newest signals, waits, callbacks and pauses of the shown submissions, in the order of time."""

    signals: Sequence[Signal] = ()
    waits: Sequence[Wait] = ()
    callbacks: Sequence[Callback] = ()
    pauses: Sequence[Pause] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceHead(TaskInstanceKey):
    now: datetime
    can_act: bool
    tries: Sequence[Try]
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyInstance(InstanceHead):
    """The task instance has submitted nothing."""

    submissions: Sequence[Submission] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(InstanceHead):
    counts: Mapping[TaskState, int]
    past_retention: int
    position: int
    submissions: Sequence[Submission]
    log: Log
    moments: Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a batch; ``state`` is None if horsies no longer keeps its task."""

    position: int
    life: int
    round: int
    state: TaskState | None
    attempts: int | None
    started_at: datetime | None
    finished_at: datetime | None
    duration: float | None
    error_code: str | None
    error_message: str | None
    hostname: str | None
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    total: int
    items: Sequence[Item]


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Arguments and result of a task, as text to show."""

    kwargs: str | None
    kwargs_note: str | None
    result: str | None
    error_data: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    outcomes: Mapping[CancelOutcome, int]
    past_retention: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A request: the life whose completed items are kept, and the number of items to run again; None for all that did
    not complete."""

    id: int
    life: int
    items: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    withdrawn: bool


# -- a workflow -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPart:
    """A workflow of the tree; ``parent`` is the workflow whose node ``parent_index`` it is. ``is_wrapper`` of the one
    that only starts a registered workflow."""

    id: str
    name: str
    state: WorkflowState
    parent: str | None
    parent_index: int | None
    is_wrapper: bool
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowNode:
    """A node of a workflow of the tree. ``state`` is that of the workflow that it starts, if there is one; ``PARKED``
    while its task waits for the signal ``waits_for`` and holds no worker. ``after`` has the names of the nodes of the
    same workflow that it waits for."""

    workflow_id: str
    index: int
    name: str
    task_name: str
    state: str
    queue: str
    is_workflow: bool
    inner: str | None
    after: Sequence[str]
    join: str
    min_success: int | None
    allow_failed: bool
    is_output: bool
    has_task: bool
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int | None
    error_code: str | None
    error_message: str | None
    error_url: str | None
    waits_for: str | None
    due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """The workflow of a submission, as far as it was read: ``is_cut`` if it has more than ``limit`` nodes. ``actions``
    are those that the user may take now."""

    now: datetime
    horsies_workflow_id: str
    life: int
    round: int
    name: str
    queue: str
    state: WorkflowState
    is_paused: bool
    is_cut: bool
    limit: int
    actions: Sequence[WorkflowAction]
    parts: Sequence[WorkflowPart]
    nodes: Sequence[WorkflowNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    may_read: bool
    lines: Sequence[LineValues]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """The task of a node; without an id, there is none yet, and without a ``task``, horsies no longer keeps it."""

    now: datetime
    workflow_id: str
    index: int
    name: str
    task_name: str
    horsies_task_id: str | None
    submitted_at: datetime | None
    task: Task | None
    attempts: Sequence[Attempt]
    progress: ProgressValues | None
    log: NodeLog


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowChange:
    """What an action did: to how many workflows, and to which failed nodes. Unless ``at_once``, the workers go on with
    a resumed workflow at their next check."""

    workflows: int
    retried: Sequence[str] = ()
    left: Sequence[str] = ()
    at_once: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent:
    """``is_new`` is False if this signal was stored before; ``resumed`` is the number of waiting tasks that go on."""

    is_new: bool
    resumed: int


# -- a DAG run --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A task instance; a batch has the state that needs attention most."""

    task_id: str
    map_index: int
    task_name: str
    queue: str
    items: int
    state: TaskState | None
    counts: Mapping[TaskState, int]
    error_code: str | None
    error_message: str | None
    submitted_at: datetime
    segments: Sequence[RunSegment]
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    dag_id: str
    run_id: str
    now: datetime
    total: int
    is_cut: bool
    rows: Sequence[RunRow]


# -- all DAGs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(QueueDepth):
    per_minute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    worker_id: str
    hostname: str
    pid: int
    queues: Sequence[str]
    processes: int
    tasks_running: int
    tasks_claimed: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    memory_mb: float | None
    cpu_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The attempts that ended in a period of time."""

    start: datetime
    ended: int
    failed: int
    p50_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``instance`` is None if nothing records who sent the task."""

    at: datetime
    what: EventKind
    task_name: str
    queue: str
    error_code: str | None
    instance: TaskInstanceKey | None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    name: str
    start: datetime
    end: datetime
    made_at: datetime | None
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    now: datetime
    queues: Sequence[Queue]
    workers: Sequence[Worker]
    recent_tasks: int
    recent_is_cut: bool
    bucket_seconds: int
    buckets: Sequence[Bucket]
    activity: Sequence[Event]
    can_monitor: bool
    reports: Sequence[Report]
    can_read_reference: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownParameter:
    """``default`` is JSON, shortened; None if there is none, or if it may be a secret."""

    name: str
    type: str
    is_required: bool
    default: str | None
    description: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEntry:
    """A task or a workflow that workers have recorded. ``takes_others``: further arguments are accepted, too;
    ``is_disputed``: other live workers have recorded other parameters under this name."""

    kind: KnownKind
    name: str
    doc: str | None
    queue: str | None
    served_queues: Sequence[str]
    parameters: Sequence[KnownParameter]
    takes_others: bool
    workers: int
    hosts: Sequence[str]
    releases: Sequence[str]
    seen_at: datetime
    is_live: bool
    is_disputed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A page of what workers know; ``recorded`` counts everything, ``total`` what matches the search."""

    now: datetime
    recorded: int
    total: int
    offset: int
    entries: Sequence[KnownEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(TaskInstanceKey):
    """``exists`` is False if Airflow no longer has the task instance; ``airflow_state`` is then None."""

    items: int
    task_name: str
    queue: str
    state: TaskState
    error_code: str | None
    error_message: str | None
    attempts: int
    hostname: str | None
    finished_at: datetime | None
    exists: bool
    airflow_state: str | None
    can_act: bool
    error_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFailures:
    """Where to continue the search; the id is encrypted."""

    at: datetime
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    now: datetime
    failures: Sequence[Failure]
    searched_to: datetime | None
    next: NextFailures | None


Answer: TypeAlias = (
    Problem
    | Instance
    | EmptyInstance
    | Items
    | Values
    | Cancelled
    | Repair
    | Withdrawn
    | Workflow
    | NodeDetail
    | WorkflowChange
    | SignalSent
    | Run
    | Overview
    | Failures
    | Reference
)
