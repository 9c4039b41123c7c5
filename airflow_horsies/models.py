"""The values for users: tasks to send, and what is known of a task."""

from __future__ import annotations

from airflow_horsies.core.batch import BatchReference, BatchSpec, ItemView, SubmittedBatch
from airflow_horsies.core.catalog import KnownKind, KnownTask
from airflow_horsies.core.cluster import QueueDepth, RetentionClass, WorkerState, is_unserved
from airflow_horsies.core.graph import Graph, Node, Ref, node, ref, wrap_definition
from airflow_horsies.core.log import LogChunk, LogCursor, LogLine, Progress, TaskNews
from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage, WorkflowPage
from airflow_horsies.core.report import Report
from airflow_horsies.core.signals import SentSignal
from airflow_horsies.core.spec import DEFAULT_QUEUE, DEFAULT_RETENTION, FOREVER, RetryPolicy, TaskSpec
from airflow_horsies.core.submission import (
    AirflowTry,
    OnClear,
    Submission,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    latest_task_ids,
)
from airflow_horsies.core.task import (
    LIVE_STATES,
    TERMINAL_STATES,
    Attempt,
    AttemptRecord,
    CancelOutcome,
    ResultReference,
    TaskException,
    TaskFailure,
    TaskResult,
    TaskState,
    TaskView,
)
from airflow_horsies.core.workflow import (
    LIVE_WORKFLOW_STATES,
    TERMINAL_WORKFLOW_STATES,
    NodeFailure,
    NodeState,
    NodeView,
    RetriedNodes,
    WorkflowOutcome,
    WorkflowState,
    WorkflowStatus,
    WorkflowSummary,
    WorkflowView,
    WorkKind,
)

__all__ = [
    "DEFAULT_QUEUE",
    "DEFAULT_RETENTION",
    "FOREVER",
    "LIVE_STATES",
    "LIVE_WORKFLOW_STATES",
    "TERMINAL_STATES",
    "TERMINAL_WORKFLOW_STATES",
    "AirflowTry",
    "Attempt",
    "AttemptRecord",
    "BatchReference",
    "BatchSpec",
    "CancelOutcome",
    "FailedTasks",
    "Graph",
    "ItemView",
    "KnownKind",
    "KnownTask",
    "LogChunk",
    "LogCursor",
    "LogLine",
    "Node",
    "NodeFailure",
    "NodeState",
    "NodeView",
    "OnClear",
    "PageCursor",
    "Progress",
    "QueueDepth",
    "Ref",
    "Report",
    "ResultReference",
    "RetentionClass",
    "RetriedNodes",
    "RetryPolicy",
    "SentSignal",
    "Submission",
    "SubmitOutcome",
    "SubmitResult",
    "SubmittedBatch",
    "TaskException",
    "TaskFailure",
    "TaskInstanceKey",
    "TaskNews",
    "TaskPage",
    "TaskResult",
    "TaskSpec",
    "TaskState",
    "TaskView",
    "WorkKind",
    "WorkerState",
    "WorkflowOutcome",
    "WorkflowPage",
    "WorkflowState",
    "WorkflowStatus",
    "WorkflowSummary",
    "WorkflowView",
    "is_unserved",
    "latest_task_ids",
    "node",
    "ref",
    "wrap_definition",
]
