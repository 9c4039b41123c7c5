"""How the outcome of a horsies workflow is reported to Airflow: one exception per outcome."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_horsies.core.graph import BEGIN_NODE
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.wording import describe_failure, error_message
from airflow_horsies.core.workflow import WorkflowOutcome
from airflow_horsies.exceptions import TaskCancelled, TaskExpired, TaskFailed, WorkflowPaused
from airflow_horsies.operators.outcomes import TaskFailedForGood, contains_nul, end_sentence, kind_of_failure
from airflow_horsies.triggers.workflow_log import describe_pause

EXPIRED_CODE = "TASK_EXPIRED"
UNKNOWN_TASK_CODE = "WORKER_RESOLUTION_ERROR"


@dataclass(frozen=True, slots=True)
class ReadWorkflow:
    """A workflow as the rules of waiting see it."""

    outcome: WorkflowOutcome

    @property
    def id(self) -> str:
        return self.outcome.id

    @property
    def state(self) -> TaskState:
        return self.outcome.state.as_task_state

    @property
    def is_paused(self) -> bool:
        return self.outcome.is_paused


def code_of(outcome: WorkflowOutcome) -> str | None:
    """The error code of the innermost node that failed, or of the workflow itself."""
    if outcome.failure is not None:
        return outcome.failure.error.error_code
    return None if outcome.error is None else outcome.error.error_code


def output_of(outcome: WorkflowOutcome, queue: str) -> Any:
    """What a completed workflow returned; TaskFailedForGood if Airflow cannot store it."""
    if contains_nul(outcome.output):
        raise TaskFailedForGood(
            f"The {describe_workflow(outcome)} returned text with a NUL character, which Airflow's database cannot "
            "store. Remove the character in the task of the output node.",
            task_id=outcome.id,
            queue=queue,
            error_code="RESULT_NOT_JSON",
        )
    return outcome.output


def failure_of_workflow(outcome: WorkflowOutcome, queue: str, *, fail_fast_codes: Collection[str] = ()) -> TaskFailed:
    """The exception for a workflow that ended FAILED. Its class decides whether Airflow retries."""
    code = code_of(outcome)
    return kind_of_failure(code, fail_fast_codes)(
        f"The {describe_workflow(outcome)} failed{'' if outcome.failure else ':'} "
        f"{end_sentence(describe_cause(outcome))} Its log is on the Horsies tab of the task instance."
        f"{_explain_start(outcome, queue)}",
        task_id=outcome.id,
        queue=queue,
        error_code=code,
    )


def describe_cause(outcome: WorkflowOutcome) -> str:
    """Why it did not complete: the innermost node that failed, with its path and its error."""
    failure = outcome.failure
    error = outcome.error if failure is None else failure.error
    text = describe_failure(code_of(outcome), error_message(error, outcome.state.lower()))
    if failure is None:
        return text
    task = f"task {failure.task_name}" if failure.task_id is None else f"{failure.task_name}, task {failure.task_id}"
    return f"at node {'/'.join(failure.path)} ({task}): {text}"


def _explain_start(outcome: WorkflowOutcome, queue: str) -> str:
    failure = outcome.failure
    if failure is None or failure.path[-1] != BEGIN_NODE or code_of(outcome) != UNKNOWN_TASK_CODE:
        return ""
    return (
        f" A worker of queue {queue!r} does not know the task that starts workflows. Start registered workflows on "
        "queues that only workers of airflow_horsies.worker serve."
    )


def expiry_of_workflow(outcome: WorkflowOutcome, good_until: Any, queue: str) -> TaskExpired:
    when = f"within {good_until}" if isinstance(good_until, timedelta) else f"by {good_until}"
    reason = (
        f"expired: no worker started it {when}. Set a later good_until, or add workers for the queue."
        if outcome.failure is not None
        else "expired, because it was paused for longer than the workers allow. Resume it earlier, or raise "
        "retention.paused_workflow_auto_cancel_after on the workers."
    )
    return TaskExpired(
        f"The {describe_workflow(outcome)} {reason}", task_id=outcome.id, queue=queue, error_code=code_of(outcome)
    )


def cancellation_of_workflow(outcome: WorkflowOutcome, queue: str, *, because: str | None = None) -> TaskCancelled:
    """:param because: why this package has cancelled it, as whole sentences."""
    return TaskCancelled(
        f"The {describe_workflow(outcome)} was cancelled. {because or 'Clear the Airflow task to submit it again.'}",
        task_id=outcome.id,
        queue=queue,
        error_code=code_of(outcome),
    )


def pause_of(outcome: WorkflowOutcome, queue: str, problem: str | None = None) -> WorkflowPaused:
    """:param problem: why it could not be cancelled, if that was asked for."""
    return WorkflowPaused(
        f"{describe_pause(outcome)} {problem or 'The Airflow task does not wait for that, because of its on_paused.'}",
        task_id=outcome.id,
        queue=queue,
        error_code=code_of(outcome),
    )


def describe_workflow(outcome: WorkflowOutcome) -> str:
    return f"horsies workflow {outcome.id} ({outcome.name})"
