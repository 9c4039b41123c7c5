"""Cancelling: what nobody else wants, with a word to the code that runs, now or as soon as it can be done."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import LIVE_STATES, CancelOutcome, TaskState
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.wire.cancelling import cancel_task
from airflow_horsies.wire.reading import read_states
from airflow_horsies.wire.statements import Wire

# In one transaction: horsies takes a lock for each, of which the server has some thousands in all.
CANCELS_AT_ONCE = 100
# Far more than any submitter takes between two statements.
MOST_IDLE_SECONDS = 60
# The version of the ledger that has requests and knows who shares a task.
SINCE = 4


def pages(task_ids: Collection[str]) -> Iterator[list[str]]:
    """So many at a time as one transaction may cancel, in the order of the ids."""
    ordered = sorted(task_ids)
    for start in range(0, len(ordered), CANCELS_AT_ONCE):
        yield ordered[start : start + CANCELS_AT_ONCE]


def cancel_task_and_signal(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES, has_signals: bool = True
) -> Script[CancelOutcome]:
    """Cancel, and tell a task that is running to stop: horsies alone would let its code run on."""
    outcome, found = yield from cancel_task(wire, task_id, states=states)
    if has_signals and outcome is CancelOutcome.CANCELLED and found is TaskState.RUNNING:
        yield Statement(sql_text(PACKAGE, "record_signal"), {"horsies_task_id": task_id, "signal": "CANCEL"})
    return outcome


def cancel_tasks_and_signal(
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
            outcomes[task_id] = yield from cancel_task_and_signal(wire, task_id, has_signals=has_signals)
    return outcomes


def cancel_task_in_any_ledger(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[CancelOutcome]:
    """Cancelling is never refused for the version of the ledger, nor does it migrate; without one nobody listens."""
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
    later: bool = False,
) -> Script[dict[str, CancelOutcome]]:
    """The task instance no longer wants these tasks; those that nobody else wants are cancelled. In a ledger of any
    version, at once or, where horsies cannot record a cancelled task now, later.

    :param try_number: the try that lets go, of its own accord: it does nothing where a later one wants them.
    :param later: only write down what is to be cancelled, as for many or where horsies cannot record it.
    """
    version = yield from read_version()
    if version < SINCE:
        return (yield from cancel_tasks_and_signal(wire, task_ids, has_signals=version > 0))
    if try_number is not None and (yield from _has_later_try(namespace, task_instance, task_ids, try_number)):
        return dict.fromkeys(task_ids, CancelOutcome.STILL_WANTED)
    if wire.schema.worker_has_started and not later:
        return (yield from cancel_unless_shared(wire, namespace, task_instance, task_ids))
    return (yield from _release_later(namespace, task_instance, task_ids))


def _has_later_try(
    namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str], try_number: int
) -> Script[bool]:
    yield from lock_task_instance(namespace, task_instance)
    (row,) = yield Statement(
        sql_text(PACKAGE, "find_later_try"),
        {
            **key_of(namespace, task_instance),
            "horsies_task_id": next(iter(task_ids), None),
            "try_number": try_number,
        },
    )
    return bool(row["is_there"])


def lock_task_instance(namespace: str, task_instance: TaskInstanceKey) -> Script[None]:
    """Whoever submits for the task instance, or lets go of what it submitted, comes one after the other."""
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
    """The task instance no longer wants these tasks; those that no other one wants are cancelled."""
    ours = yield from _let_go(namespace, task_instance, task_ids)
    outcomes = dict.fromkeys(set(task_ids) - ours, CancelOutcome.STILL_WANTED)
    return outcomes | (yield from cancel_tasks_and_signal(wire, ours))


def request_cancel(namespace: str, task_instance: TaskInstanceKey, task_ids: Collection[str]) -> Script[set[str]]:
    """As :func:`cancel_unless_shared`, where horsies cannot record a cancelled task now: it is done later."""
    ours = yield from _let_go(namespace, task_instance, task_ids)
    if ours:
        yield Statement(sql_text(PACKAGE, "request_cancel"), {"ids": sorted(ours)})
    return ours


def carry_out_requests(wire: Wire, ids: Collection[str] | None = None) -> Script[dict[str, CancelOutcome]]:
    """Cancel some of what could not be cancelled when that was asked for; the outcome of each.

    :param ids: only these.
    """
    if not wire.schema.worker_has_started or (yield from read_version()) < SINCE:
        return {}
    rows = yield Statement(
        sql_text(PACKAGE, "take_cancel_requests"),
        {"limit": CANCELS_AT_ONCE, "ids": None if ids is None else sorted(ids)},
    )
    taken = [row["horsies_task_id"] for row in rows]
    return (yield from cancel_tasks_and_signal(wire, taken)) if taken else {}


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
