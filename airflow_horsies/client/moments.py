"""What happened around the tasks of a task instance, from our tables and from those of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from airflow_horsies.client.client import Client
from airflow_horsies.core.moments import Moments, PauseRecord, WaitRecord
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.workflow import WorkflowState, WorkKind
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.ledger.moments import SINCE, Recorded, read_recorded
from airflow_horsies.wire import workflows

# Of the workflows inside those of a task instance.
MAX_WORKFLOWS = 500


def read_moments(
    client: Client, deployment: Deployment, key: TaskInstanceKey, sent: Sequence[Submission], *, with_values: bool
) -> Moments:
    """
    :param sent: submissions of the task instance. Items of chunks have no signals.
    :param with_values: with the payloads of signals and the answers of callbacks.
    """
    owners = {one.horsies_task_id: one.horsies_task_id for one in sent if one.number is None}
    roots = [one.horsies_task_id for one in sent if one.kind is WorkKind.WORKFLOW]
    pauses: list[PauseRecord] = []
    if roots:
        find = partial(workflows.find_inner_workflows, ids=roots, limit=MAX_WORKFLOWS)
        for inner in client.read(find):
            owners[inner.id] = inner.root_id
            if inner.state is WorkflowState.PAUSED:
                pauses.append(
                    PauseRecord(of=inner.root_id, workflow_id=inner.id, name=inner.name, since=inner.changed_at)
                )
    read = partial(read_recorded, deployment, key, owners, with_values=with_values)
    recorded = client.read_ledger(SINCE, read, otherwise=Recorded())
    return Moments(
        signals=recorded.signals,
        waits=_end_waits(client, recorded.waits),
        callbacks=recorded.callbacks,
        pauses=tuple(sorted(pauses, key=lambda pause: pause.since)),
    )


def _end_waits(client: Client, waits: Sequence[WaitRecord]) -> tuple[WaitRecord, ...]:
    """A wait also ends when its time is over, or with its task."""
    unended = {wait.task_id for wait in waits if wait.ended_at is None}
    tasks = client.read_outlines(unended) if unended else {}
    return tuple(
        _end(wait, tasks[wait.task_id].finished_at if wait.task_id in tasks else wait.parked_at)
        if wait.ended_at is None
        else wait
        for wait in waits
    )


def _end(wait: WaitRecord, task_ended_at: datetime | None) -> WaitRecord:
    ends = [end for end in (wait.due_at, task_ended_at) if end is not None and end <= datetime.now(UTC)]
    return replace(wait, ended_at=max(min(ends), wait.parked_at)) if ends else wait
