"""Cancels one task through the function of horsies."""

from __future__ import annotations

from collections.abc import Collection

from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState, require_states
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import (
    SchemaUnsupported,
    TaskNotCancellable,
    WireError,
)
from airflow_horsies.wire.decoding import (
    decode_state,
)
from airflow_horsies.wire.reading import task_not_found
from airflow_horsies.wire.statements import Wire


def cancel_task(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[tuple[CancelOutcome, TaskState]]:
    """Cancel a task; returns the outcome and the state before it."""
    states = require_states(states)
    if not wire.schema.worker_has_started:
        raise SchemaUnsupported(
            "No horsies worker has ever started on this database, so horsies cannot record a cancelled task yet. "
            "Start a worker once, then cancel again."
        )
    rows = yield wire.cancel_task(task_id, states)
    outcome = rows[0]["outcome"] if rows else "TASK_ABSENT"
    if outcome == "TASK_ABSENT":
        raise task_not_found(task_id)
    state = decode_state(task_id, rows[0]["observed_status"])
    match outcome:
        case "APPLIED":
            return CancelOutcome.CANCELLED, state
        case "ALREADY_APPLIED":
            return CancelOutcome.ALREADY_CANCELLED, state
        case "SOURCE_STATE_CONFLICT" if state is TaskState.CANCELLED:
            return CancelOutcome.ALREADY_CANCELLED, state
        case "SOURCE_STATE_CONFLICT" if state.is_terminal:
            return CancelOutcome.ALREADY_FINISHED, state
        case "SOURCE_STATE_CONFLICT" if state not in states:
            raise not_to_be_cancelled(task_id, state, states)
        case "SOURCE_STATE_CONFLICT":
            raise TaskNotCancellable(
                f"Task {task_id} belongs to a horsies workflow. Cancel the workflow instead.", task_id=task_id
            )
    raise WireError(
        f"Cancelling task {task_id} returned {outcome!r}, which this release does not know. Upgrade airflow-horsies."
    )


def not_to_be_cancelled(task_id: str, state: TaskState, states: Collection[TaskState]) -> TaskNotCancellable:
    return TaskNotCancellable(
        f"Task {task_id} is {state}, which is not one of the states to cancel ({', '.join(sorted(states))}). "
        f"Add {state} to them to cancel the task.",
        task_id=task_id,
    )
