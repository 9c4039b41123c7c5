"""Repair: a clear that runs again only what did not complete, by the operator's setting or at a user's request.

The kept items are recorded again in the new life, with the tasks they already have, so that all that is read by life
holds for them too. Nothing is kept if the DAG run may have been created again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat

from airflow_horsies.core.batch import NO_NUMBER
from airflow_horsies.core.submission import OnClear, RepairRequest, ShownItem, TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.exceptions import BatchChanged, InvalidTask, TaskNotFound
from airflow_horsies.ledger.cancelling import lock_task_instance
from airflow_horsies.ledger.chunks import split_works
from airflow_horsies.ledger.identity import Item, Submitter, is_key_of_trace, is_same_run, last_try
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.ledger.schema import PACKAGE

# The first version of the ledger with requests.
SINCE = 6
# A request whose clear never came is void after this time.
VALID_FOR = timedelta(days=1)
KEPT_FOR = timedelta(days=30)
MAX_ITEMS = 1_000


@dataclass(frozen=True, slots=True)
class Repair:
    """Which items run again; ``items`` is None for all that did not complete."""

    items: frozenset[Item] | None = None

    def reruns(self, item: Item, state: TaskState | None) -> bool:
        """``state`` is None for a task that horsies no longer keeps: its value cannot be returned."""
        if state is None:
            return True
        if state is TaskState.COMPLETED or not state.is_terminal:
            return False
        return self.items is None or item in self.items


def find_repair(submitter: Submitter, newest: Rows, *, life: int, on_clear: OnClear) -> Script[Repair | None]:
    """What the first submission of a life repairs. An open request is taken or void from now on."""
    if not newest:
        return None
    may_take = _is_same_run(submitter, newest, is_requested=True)
    for row in (yield _take_repair(submitter, newest, life=life, may_take=may_take)):
        if row["taken_life"] is not None:
            return Repair(_decode_items(row))
    return Repair() if repairs_by_setting(submitter, newest, on_clear) else None


def void_repair(submitter: Submitter, newest: Rows) -> Script[None]:
    """Close an open request, for a later try that only its trace connects with the life. The clear of the request may
    have left the trace as it was, and a request is for one clear: the next one runs everything again."""
    yield _take_repair(submitter, newest, life=newest[0]["life"], may_take=False)


def _take_repair(submitter: Submitter, newest: Rows, *, life: int, may_take: bool) -> Statement:
    params = {
        **submitter.key,
        "base_url": submitter.base_url,
        "may_take": may_take,
        "is_same_run": may_take and _is_same_run(submitter, newest, is_requested=False),
        "run_started_at": submitter.tried.run_started_at,
        "life": life,
        "last_life": newest[0]["life"],
        # A triggerer does not know it.
        "clear_number": None if submitter.tried.is_traced else submitter.tried.clear_number,
        "valid_seconds": VALID_FOR.total_seconds(),
    }
    return Statement(sql_text(PACKAGE, "take_repair"), params)


def find_repair_of_life(submitter: Submitter, newest: Rows) -> Script[Repair | None]:
    """The repair of single items that began the life that a try continues."""
    if not any(row["taken_up"] for row in newest):
        return None
    rows = yield Statement(sql_text(PACKAGE, "find_repair_of_life"), {**submitter.key, "life": newest[0]["life"]})
    return Repair(_decode_items(rows[0])) if rows else None


def repairs_by_setting(submitter: Submitter, newest: Rows, on_clear: OnClear) -> bool:
    return on_clear is OnClear.FAILED and _is_same_run(submitter, newest, is_requested=False)


def _is_same_run(submitter: Submitter, newest: Rows, *, is_requested: bool) -> bool:
    """A request is made in an existing run. Without a key of the run, which a triggerer never has, a later try may be
    enough for a request, and for nothing else."""
    last = max(newest, key=lambda row: int(row["try_number"]))
    tried = submitter.tried
    is_traced = tried.is_traced or is_key_of_trace(last["run_key"])
    if not is_traced and is_same_run(tried, last):
        return True
    has_keys = not is_traced and tried.run_key is not None and last["run_key"] is not None
    return is_requested and not has_keys and tried.try_number > last_try(newest)


def request_repair(
    deployment: Deployment,
    task_instance: TaskInstanceKey,
    *,
    clear_number: int,
    run_started_at: datetime | None,
    requested_by: str,
    items: Collection[int | ShownItem] | None = None,
) -> Script[RepairRequest]:
    """Request that the next clear of a task instance runs again only what did not complete.

    :param clear_number: of the DAG run now.
    :param run_started_at: of the DAG run now.
    :param items: the items to run again, by place or as a page showed them; None for all.
    """
    if items is not None and not 1 <= len(items) <= MAX_ITEMS:
        raise InvalidTask("items", f"must be 1 to {MAX_ITEMS} items, not {len(items)}")
    yield from lock_task_instance(deployment.namespace, task_instance)
    newest = yield Statement(sql_text(PACKAGE, "read_last_life"), deployment.params(task_instance))
    if newest[0]["life"] is None:
        raise TaskNotFound(
            f"{task_instance} has not submitted a horsies task, so there is nothing to repair. Clear it to run it.",
            task_id="(none)",
        )
    chosen = None if items is None else (yield from _find_items(deployment, task_instance, items))
    (row,) = yield Statement(
        sql_text(PACKAGE, "request_repair"),
        {
            **deployment.params(task_instance),
            "life": newest[0]["life"],
            "clear_number": clear_number,
            "run_started_at": run_started_at,
            "works": None if chosen is None else b"".join(item.work for item in chosen),
            "occurrences": None if chosen is None else [item.occurrence for item in chosen],
            "requested_by": requested_by,
        },
    )
    return RepairRequest(id=row["id"], life=newest[0]["life"], items=None if chosen is None else len(chosen))


def withdraw_repair(deployment: Deployment, task_instance: TaskInstanceKey, id_: int) -> Script[bool]:
    """Withdraw a request whose clear failed; returns whether it was open."""
    params = {**deployment.params(task_instance), "id": id_}
    return bool((yield Statement(sql_text(PACKAGE, "withdraw_repair"), params)))


def prune_repairs() -> Statement:
    return Statement(sql_text(PACKAGE, "prune_repairs"), {"older_than_seconds": KEPT_FOR.total_seconds()})


def _find_items(
    deployment: Deployment, key: TaskInstanceKey, wanted: Collection[int | ShownItem]
) -> Script[list[Item]]:
    shown = [item for item in wanted if isinstance(item, ShownItem)]
    places = {item.position if isinstance(item, ShownItem) else item for item in wanted}
    rows = yield Statement(sql_text(PACKAGE, "find_items"), {**deployment.params(key), "places": sorted(places)})
    standing = {row["place"]: (row["horsies_task_id"], row["number"]) for row in rows}
    for item in shown:
        number = NO_NUMBER if item.number is None else item.number
        if standing.get(item.position) != (item.task_id, number):
            raise BatchChanged
    found = {row["place"]: Item(bytes(row["work"]), row["occurrence"]) for row in rows if row["work"] is not None}
    missing = sorted(places - found.keys())
    if missing:
        raise TaskNotFound(
            f"{key} has no item {missing[0]} that can be repaired alone. Leave it out to repair all items that did not "
            "complete.",
            task_id="(none)",
        )
    return [found[place] for place in sorted(found)]


def _decode_items(row: Row) -> frozenset[Item] | None:
    if row["works"] is None:
        return None
    return frozenset(map(Item, split_works(bytes(row["works"])), row["occurrences"] or repeat(0)))
