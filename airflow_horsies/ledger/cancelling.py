"""Cancelling: what nobody else wants, with a word to the code that runs, now or as soon as it can be done."""

from __future__ import annotations

from collections.abc import Collection

from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.models import LIVE_STATES, CancelOutcome, TaskInstanceKey, TaskState
from airflow_horsies.wire.scripts import cancel_task, read_states
from airflow_horsies.wire.statement import Script, Statement, sql_text
from airflow_horsies.wire.statements import Wire

REQUESTS_AT_ONCE = 100
# The version of the ledger that has requests and knows who shares a task.
SINCE = 4


def cancel_and_signal(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES, has_signals: bool = True
) -> Script[CancelOutcome]:
    """Cancel, and tell a task that is running to stop: horsies alone would let its code run on."""
    outcome, found = yield from cancel_task(wire, task_id, states=states)
    if has_signals and outcome is CancelOutcome.CANCELLED and found is TaskState.RUNNING:
        yield Statement(sql_text(PACKAGE, "record_signal"), {"horsies_task_id": task_id, "signal": "CANCEL"})
    return outcome


def cancel_many_and_signal(
    wire: Wire, task_ids: Collection[str], *, has_signals: bool = True
) -> Script[dict[str, CancelOutcome]]:
    """Cancel those that are live; in the order of their ids, so that two of these cannot deadlock."""
    outcomes: dict[str, CancelOutcome] = {}
    for task_id, state in sorted((yield from read_states(wire, task_ids)).items()):
        if state is TaskState.CANCELLED:
            outcomes[task_id] = CancelOutcome.ALREADY_CANCELLED
        elif state.is_terminal:
            outcomes[task_id] = CancelOutcome.ALREADY_FINISHED
        else:
            outcomes[task_id] = yield from cancel_and_signal(wire, task_id, has_signals=has_signals)
    return outcomes


def cancel_in_any_ledger(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[CancelOutcome]:
    """Cancelling is never refused for the version of the ledger, nor does it migrate; without one nobody listens."""
    has_signals = (yield from read_version()) > 0
    return (yield from cancel_and_signal(wire, task_id, states=states, has_signals=has_signals))


def cancel_many_in_any_ledger(wire: Wire, task_ids: Collection[str]) -> Script[dict[str, CancelOutcome]]:
    has_signals = (yield from read_version()) > 0
    return (yield from cancel_many_and_signal(wire, task_ids, has_signals=has_signals))


def release(
    wire: Wire, namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]
) -> Script[dict[str, CancelOutcome]]:
    """As :func:`cancel_unless_shared`, in a ledger of any version, now or later."""
    version = yield from read_version()
    if version < SINCE:
        return (yield from cancel_many_and_signal(wire, task_ids, has_signals=version > 0))
    if wire.schema.worker_has_started:
        return (yield from cancel_unless_shared(wire, namespace, task_instance, task_ids))
    return (yield from release_later(namespace, task_instance, task_ids))


def release_later(
    namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]
) -> Script[dict[str, CancelOutcome]]:
    """As :func:`release`, where horsies cannot record a cancelled task now."""
    requested = yield from request_cancel(namespace, task_instance, task_ids)
    return {
        task_id: CancelOutcome.REQUESTED if task_id in requested else CancelOutcome.STILL_WANTED for task_id in task_ids
    }


def cancel_unless_shared(
    wire: Wire, namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]
) -> Script[dict[str, CancelOutcome]]:
    """The task instance no longer wants these tasks; those that no other one wants are cancelled."""
    ours = yield from _let_go(namespace, task_instance, task_ids)
    outcomes = dict.fromkeys(set(task_ids) - ours, CancelOutcome.STILL_WANTED)
    return outcomes | (yield from cancel_many_and_signal(wire, ours))


def request_cancel(namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]) -> Script[set[str]]:
    """As :func:`cancel_unless_shared`, where horsies cannot record a cancelled task now: it is done later."""
    ours = yield from _let_go(namespace, task_instance, task_ids)
    if ours:
        yield Statement(sql_text(PACKAGE, "request_cancel"), {"ids": sorted(ours)})
    return ours


def carry_out_requests(wire: Wire, *, limit: int = REQUESTS_AT_ONCE) -> Script[int]:
    """Cancel what could not be cancelled when that was asked for; how many requests were carried out."""
    if not wire.schema.worker_has_started or (yield from read_version()) < SINCE:
        return 0
    rows = yield Statement(sql_text(PACKAGE, "take_cancel_requests"), {"limit": limit})
    ids = [row["horsies_task_id"] for row in rows]
    if ids:
        yield from cancel_many_and_signal(wire, ids)
    return len(ids)


def lock_shared_tasks(task_ids: Collection[str]) -> Script[set[str]]:
    """Nobody lets go of these, or takes them up, until the end of the transaction; those that are to be cancelled."""
    yield Statement(sql_text(PACKAGE, "lock_shared_tasks"), {"ids": sorted(task_ids)})
    rows = yield Statement(sql_text(PACKAGE, "find_cancel_requests"), {"ids": sorted(task_ids)})
    return {row["horsies_task_id"] for row in rows}


def _let_go(namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]) -> Script[set[str]]:
    """Those of the tasks that nobody else wants."""
    params = {**key_of(namespace, task_instance), "ids": sorted(task_ids)}
    yield Statement(sql_text(PACKAGE, "lock_shared_tasks"), {"ids": params["ids"]})
    yield Statement(sql_text(PACKAGE, "release_submissions"), params)
    rows = yield Statement(sql_text(PACKAGE, "find_wanted_by_others"), params)
    return set(task_ids) - {row["horsies_task_id"] for row in rows}
