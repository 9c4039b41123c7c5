"""Cancels tasks that no one else needs and signals running code, at once or as soon as possible."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress

from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import WorkflowNotFound
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.ledger.workflows import find_workflows, know_workflows
from airflow_horsies.wire.cancelling import cancel_task
from airflow_horsies.wire.reading import read_states
from airflow_horsies.wire.statements import Wire
from airflow_horsies.wire.workflows import cancel_workflow

# Per transaction: horsies takes a lock per task, and the server has some thousands of locks in total.
CANCELS_AT_ONCE = 100
# Far longer than any submitter pauses between two statements.
MOST_IDLE_SECONDS = 60
# The first version of the ledger with cancel requests and shared tasks.
SINCE = 4


def pages(task_ids: Collection[str]) -> Iterator[list[str]]:
    """The ids in order, in pages that one transaction may cancel."""
    ordered = sorted(task_ids)
    for start in range(0, len(ordered), CANCELS_AT_ONCE):
        yield ordered[start : start + CANCELS_AT_ONCE]


def cancel_task_and_signal(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES, has_signals: bool = True
) -> Script[CancelOutcome]:
    """Cancel a task and signal running code to stop: horsies alone would let the code run."""
    outcome, found = yield from cancel_task(wire, task_id, states=states)
    if has_signals and outcome is CancelOutcome.CANCELLED and found is TaskState.RUNNING:
        yield Statement(sql_text(PACKAGE, "record_signal"), {"horsies_task_id": task_id, "signal": "CANCEL"})
    return outcome


def cancel_tasks_and_signal(
    wire: Wire, task_ids: Collection[str], *, has_signals: bool = True
) -> Script[dict[str, CancelOutcome]]:
    """Cancel the live tasks, in the order of their ids to avoid deadlocks; then submitted workflows among the ids."""
    outcomes: dict[str, CancelOutcome] = {}
    states = yield from read_states(wire, task_ids)
    for task_id, state in sorted(states.items()):
        if state is TaskState.CANCELLED:
            outcomes[task_id] = CancelOutcome.ALREADY_CANCELLED
        elif state.is_terminal:
            outcomes[task_id] = CancelOutcome.ALREADY_FINISHED
        else:
            outcomes[task_id] = yield from cancel_task_and_signal(wire, task_id, has_signals=has_signals)
    for workflow_id in sorted((yield from find_workflows(set(task_ids) - states.keys())) if has_signals else ()):
        with suppress(WorkflowNotFound):
            outcomes[workflow_id] = yield from cancel_workflow_and_signal(wire, workflow_id)
    return outcomes


def cancel_workflow_and_signal(wire: Wire, workflow_id: str, *, has_signals: bool = True) -> Script[CancelOutcome]:
    """Cancel a workflow with those inside it, and signal the code of running nodes to stop."""
    cancelled = yield from cancel_workflow(wire, workflow_id)
    for task_id in cancelled.running if has_signals else ():
        yield Statement(sql_text(PACKAGE, "record_signal"), {"horsies_task_id": task_id, "signal": "CANCEL"})
    return cancelled.outcome


def cancel_workflow_in_any_ledger(wire: Wire, workflow_id: str) -> Script[CancelOutcome]:
    """Cancel with a ledger of any version, without a migration; without a ledger there are no signals."""
    has_signals = (yield from read_version()) > 0
    return (yield from cancel_workflow_and_signal(wire, workflow_id, has_signals=has_signals))


def cancel_task_in_any_ledger(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[CancelOutcome]:
    """Cancel with a ledger of any version, without a migration; without a ledger there are no signals."""
    has_signals = (yield from read_version()) > 0
    return (yield from cancel_task_and_signal(wire, task_id, states=states, has_signals=has_signals))


def cancel_tasks_in_any_ledger(wire: Wire, task_ids: Collection[str]) -> Script[dict[str, CancelOutcome]]:
    has_signals = (yield from read_version()) > 0
    return (yield from cancel_tasks_and_signal(wire, task_ids, has_signals=has_signals))


def release_tasks(
    wire: Wire,
    namespace: str,
    task_instance: TaskInstanceKey,
    task_ids: Collection[str],
    *,
    try_number: int | None = None,
    life: int | None = None,
    later: bool = False,
) -> Script[dict[str, CancelOutcome]]:
    """Release the tasks of a task instance and cancel those that no one else needs. Works with a ledger of any version,
    at once or, if horsies cannot record a cancelled task now, later.

    :param try_number: the try that releases the tasks; it does nothing if a later try needs them.
    :param life: the life that releases the tasks; it does nothing if a later life has taken one over.
    :param later: only record the request, for many tasks or if horsies cannot record a cancel now.
    """
    version = yield from read_version()
    if version < SINCE:
        return (yield from cancel_tasks_and_signal(wire, task_ids, has_signals=version > 0))
    if (try_number, life) != (None, None) and (
        yield from _has_later_try(namespace, task_instance, task_ids, try_number, life)
    ):
        return dict.fromkeys(task_ids, CancelOutcome.STILL_WANTED)
    if wire.schema.worker_has_started and not later:
        return (yield from cancel_unless_shared(wire, namespace, task_instance, task_ids))
    return (yield from _release_later(namespace, task_instance, task_ids))


def _has_later_try(
    namespace: str,
    task_instance: TaskInstanceKey,
    task_ids: Collection[str],
    try_number: int | None,
    life: int | None,
) -> Script[bool]:
    yield from lock_task_instance(namespace, task_instance)
    (row,) = yield Statement(
        sql_text(PACKAGE, "find_later_try"),
        {
            **key_of(namespace, task_instance),
            "ids": sorted(task_ids),
            "try_number": try_number,
            "life": life,
        },
    )
    return bool(row["is_there"])


def lock_task_instance(namespace: str, task_instance: TaskInstanceKey) -> Script[None]:
    """Serialise submissions and releases of a task instance."""
    key = json.dumps(list(key_of(namespace, task_instance).values()))
    yield Statement(sql_text(PACKAGE, "lock_task_instance"), {"key": key, "idle_seconds": MOST_IDLE_SECONDS})


def _release_later(
    namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]
) -> Script[dict[str, CancelOutcome]]:
    requested = yield from request_cancel(namespace, task_instance, task_ids)
    return {
        task_id: CancelOutcome.REQUESTED if task_id in requested else CancelOutcome.STILL_WANTED for task_id in task_ids
    }


def cancel_unless_shared(
    wire: Wire, namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]
) -> Script[dict[str, CancelOutcome]]:
    """Release the tasks of a task instance and cancel those that no other task instance needs."""
    ours = yield from _release(namespace, task_instance, task_ids)
    outcomes = dict.fromkeys(set(task_ids) - ours, CancelOutcome.STILL_WANTED)
    return outcomes | (yield from cancel_tasks_and_signal(wire, ours))


def request_cancel(namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]) -> Script[set[str]]:
    """As :func:`cancel_unless_shared`, but later, if horsies cannot record a cancelled task now."""
    ours = yield from _release(namespace, task_instance, task_ids)
    if ours:
        yield Statement(sql_text(PACKAGE, "request_cancel"), {"ids": sorted(ours)})
    return ours


def carry_out_requests(wire: Wire, ids: Collection[str] | None = None) -> Script[dict[str, CancelOutcome]]:
    """Carry out a page of the requested cancels; returns the outcomes by id.

    :param ids: only these.
    """
    if not wire.schema.worker_has_started or (yield from read_version()) < SINCE:
        return {}
    yield know_workflows()
    rows = yield Statement(
        sql_text(PACKAGE, "take_cancel_requests"),
        {"limit": CANCELS_AT_ONCE, "ids": None if ids is None else sorted(ids)},
    )
    taken = [row["horsies_task_id"] for row in rows]
    return (yield from cancel_tasks_and_signal(wire, taken)) if taken else {}


def lock_shared_tasks(task_ids: Collection[str]) -> Script[set[str]]:
    """Lock shared tasks until the end of the transaction; returns those with a cancel request."""
    yield Statement(sql_text(PACKAGE, "lock_shared_tasks"), {"ids": sorted(task_ids)})
    rows = yield Statement(sql_text(PACKAGE, "find_cancel_requests"), {"ids": sorted(task_ids)})
    return {row["horsies_task_id"] for row in rows}


def _release(namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]) -> Script[set[str]]:
    """Release the tasks; returns those that no one else needs."""
    params = {**key_of(namespace, task_instance), "ids": sorted(task_ids)}
    yield Statement(sql_text(PACKAGE, "lock_shared_tasks"), {"ids": params["ids"]})
    yield Statement(sql_text(PACKAGE, "release_submissions"), params)
    rows = yield Statement(sql_text(PACKAGE, "find_wanted_by_others"), params)
    return set(task_ids) - {row["horsies_task_id"] for row in rows}
