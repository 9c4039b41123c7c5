"""Exactly one horsies task per task instance, life, item and round, whatever fails or changes in between.

A life is the time between two clears of a task instance in one DAG run; in a life, rounds count the submissions of an
item. An item is identified by its work, which is task name and arguments, not by its place in a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC

from airflow_horsies.core.submission import SubmitOutcome, SubmitResult
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.ledger.cancelling import (
    CANCELS_AT_ONCE,
    cancel_unless_shared,
    lock_task_instance,
    request_cancel,
)
from airflow_horsies.ledger.catalog import Gate
from airflow_horsies.ledger.identity import (
    Submitter,
    continues_life,
    follows_success,
    is_of_same_try,
    last_try,
    number_works,
)
from airflow_horsies.ledger.matching import find_moved, find_unwanted, match_items, rounds_by_place
from airflow_horsies.ledger.rounds import ChunkRound, Round, find_unrecorded, needs_next_round
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.ledger.sending import Sending, TaskSending, WorkflowSending
from airflow_horsies.ledger.workflows import read_round_states
from airflow_horsies.wire.encoding import COMPACT, EncodedTask
from airflow_horsies.wire.graphs import EncodedWorkflow
from airflow_horsies.wire.statements import Wire


def submit_tasks(
    wire: Wire,
    submitter: Submitter,
    tasks: Sequence[EncodedTask],
    *,
    can_cancel: bool = True,
    gate: Gate | None = None,
) -> Script[list[SubmitResult]]:
    """Send, reattach to or adopt each task, and cancel tasks that are no longer requested.

    :param tasks: in the order of the items.
    :param can_cancel: False if horsies cannot record a cancelled task now; the cancels are then carried out later.
    :param gate: refuses what no worker would accept; only of what is sent now.
    """
    return (yield from submit(wire, submitter, TaskSending(tasks, gate), can_cancel=can_cancel))


def submit_workflow(
    wire: Wire, submitter: Submitter, workflow: EncodedWorkflow, *, can_cancel: bool = True
) -> Script[SubmitResult]:
    """As submit_tasks, for a workflow; its state is given as that of a task."""
    (result,) = yield from submit(wire, submitter, WorkflowSending(workflow), can_cancel=can_cancel)
    return result


def submit(
    wire: Wire, submitter: Submitter, sending: Sending, *, can_cancel: bool = True
) -> Script[list[SubmitResult]]:
    """The rules of submitting, for tasks and workflows alike."""
    works = sending.works
    require_derived_ids(works)
    items = list(number_works(work.work for work in works))
    yield from lock_task_instance(submitter.namespace, submitter.task_instance)
    # Before shared tasks are released: all submitters lock in this order.
    yield from sending.lock()
    newest = yield Statement(sql_text(PACKAGE, "read_newest_life"), submitter.key)
    yield from sending.look()
    # Read in the same round trip, because a first submission needs it.
    first_ids = [submitter.derive_task_id(item, 1) for item in items]
    existing = yield from sending.find(wire, first_ids)
    continues = continues_life(submitter, newest)
    life = max((row["life"] for row in newest), default=0) + (0 if continues else 1)
    recorded = (yield from match_items(wire, newest, items, sending.tasks)) if continues else {}

    states = yield from read_round_states(wire, newest)
    unwanted = find_unwanted(newest, recorded)
    yield from release_unwanted(
        wire, submitter, unwanted, states, can_cancel=can_cancel and wire.schema.worker_has_started
    )

    is_asked_again = continues and follows_success(submitter.tried, newest, states)
    results: dict[int, SubmitResult] = {}
    pending: list[Round] = []
    free = max((row["position"] for row in newest), default=-1) + 1 if continues else 0
    earlier_rounds = rounds_by_place(newest) if continues else {}
    for place, (item, work) in enumerate(zip(items, works, strict=True)):
        row = recorded.get(place)
        if row is None:
            position, free = (free, free + 1) if continues else (place, free)
            pending.append(Round(submitter, item, position, place, earlier_rounds.get(place, 0) + 1, work))
        elif is_asked_again or _needs_next_round(submitter, row, states.get(row["horsies_task_id"])):
            pending.append(Round(submitter, item, row["position"], place, row["round"] + 1, work))
        else:
            task_id = row["horsies_task_id"]
            results[place] = make_result(task_id, states[task_id], life, row["round"], place)

    known = yield from find_unrecorded(wire, pending, existing, set(first_ids), sending)
    # A clear requests the work again, even if another task instance has done it.
    yield from sending.send(wire, pending, known, is_clear=bool(newest) and not continues)
    for round_ in pending:
        state = known.get(round_.horsies_task_id)
        results[round_.place] = make_result(round_.horsies_task_id, state, life, round_.number, round_.place)
    if pending:
        yield record_rounds(submitter, life, pending)
    elif continues and submitter.tried.try_number > last_try(newest):
        yield record_try(submitter, newest[0])
    moved = find_moved(newest, recorded) if continues or not works else []
    if moved:
        params = {**submitter.key, "life": newest[0]["life"], "items": COMPACT.encode(moved)}
        yield Statement(sql_text(PACKAGE, "move_items"), params)
    return [results[place] for place in range(len(works))]


def require_derived_ids(works: Sequence[EncodedTask | EncodedWorkflow]) -> None:
    if any(work.id_is_given for work in works):
        raise InvalidTask("task_id", "is derived from the task instance when submitting. Leave it out")


def release_unwanted(
    wire: Wire, submitter: Submitter, unwanted: Collection[Row], states: Mapping[str, TaskState], *, can_cancel: bool
) -> Script[None]:
    """Cancel unwanted live tasks; a task that others share keeps running."""
    live = [row["horsies_task_id"] for row in unwanted if _is_live(states.get(row["horsies_task_id"]))]
    if not live:
        return
    if can_cancel and len(live) <= CANCELS_AT_ONCE:
        yield from cancel_unless_shared(wire, submitter.namespace, submitter.task_instance, live)
    else:
        yield from request_cancel(submitter.namespace, submitter.task_instance, live)


def _needs_next_round(submitter: Submitter, row: Row, state: TaskState | None) -> bool:
    if state is not None and is_of_same_try(submitter.tried, row):
        return False
    return needs_next_round(
        row["horsies_task_id"],
        state,
        is_to_be_cancelled=bool(row["is_to_be_cancelled"]),
        kind=WorkKind(row["kind"]),
    )


def _is_live(state: TaskState | None) -> bool:
    return state is not None and not state.is_terminal


def make_result(task_id: str, state: TaskState | None, life: int, number: int, position: int) -> SubmitResult:
    """``state`` is None for a task that was just inserted."""
    return SubmitResult(
        task_id=task_id,
        outcome=outcome_of(state),
        state=state or TaskState.PENDING,
        life=life,
        round=number,
        position=position,
    )


def outcome_of(state: TaskState | None, *, is_kept: bool = False) -> SubmitOutcome:
    """How a submission got a task in this state; None for one that was just inserted.

    :param is_kept: a repair of single items left it as it is, if it has ended.
    """
    if state is None:
        return SubmitOutcome.SENT
    if state is TaskState.COMPLETED:
        return SubmitOutcome.ADOPTED
    return SubmitOutcome.KEPT if is_kept and state.is_terminal else SubmitOutcome.REATTACHED


def record_try(submitter: Submitter, row: Row) -> Statement:
    place = {name: row[name] for name in ("life", "position", "round")}
    params = {**submitter.key, **place, "try_number": submitter.tried.try_number}
    return Statement(sql_text(PACKAGE, "see_try"), params)


def record_rounds(submitter: Submitter, life: int, rounds: Sequence[Round | ChunkRound]) -> Statement:
    new = COMPACT.encode([item.columns for item in rounds])
    return Statement(sql_text(PACKAGE, "record_submissions"), {**life_columns(submitter, life), "rounds": new})


def life_columns(submitter: Submitter, life: int) -> dict[str, object]:
    """What all submissions of a try have in common."""
    tried = submitter.tried
    began = tried.run_started_at
    return {
        **submitter.key,
        "life": life,
        "try_number": tried.try_number,
        "run_key": tried.run_key,
        "run_started_at": None if began is None else began.astimezone(UTC),
        "clear_number": tried.clear_number,
        "max_tries": tried.max_tries,
        "base_url": submitter.base_url,
    }
