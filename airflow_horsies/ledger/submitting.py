"""Exactly one horsies task per task instance, life, item and round, whatever dies or changes in between.

A life is what happens between two clears of a task instance within one DAG run; within a life, rounds count the
submissions of an item. What an item is, is told by its work: task name and arguments, not its place in a batch.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto
from itertools import count
from typing import assert_never

from airflow_horsies.core.submission import AirflowTry, SubmitOutcome, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.exceptions import InvalidTask, NamespaceTaken, StaleSubmission, TaskIdTaken, TaskNotFound
from airflow_horsies.ledger.cancelling import (
    CANCELS_AT_ONCE,
    cancel_unless_shared,
    lock_shared_tasks,
    lock_task_instance,
    request_cancel,
)
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.wire.encoding import COMPACT, EncodedTask, as_sent, work_of
from airflow_horsies.wire.reading import FoundCommand, find_commands, is_same_command, read_states, read_tasks
from airflow_horsies.wire.sending import EarlierTask, claim_idempotency_keys, insert_new_tasks
from airflow_horsies.wire.statements import Wire

# Never change this value: ids derived from it are in databases.
TASK_ID_NAMESPACE = uuid.UUID("5d1a0f0e-7f0c-5b39-9c58-0a8f3f0c6f51")
NO_LONGER_ASKED_FOR = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """The task instance that submits, in which try, from which deployment."""

    namespace: str
    base_url: str
    task_instance: TaskInstanceKey
    tried: AirflowTry

    @property
    def key(self) -> dict[str, str | int]:
        return key_of(self.namespace, self.task_instance)

    def derive_task_id(self, item: Item, round_: int) -> str:
        """The same submission always gets the same id, also where its record was lost."""
        name = [*self.key.values(), *self.tried.life_key, item.work.hex(), item.occurrence, round_]
        return str(uuid.uuid5(TASK_ID_NAMESPACE, json.dumps(name, separators=(",", ":"))))


@dataclass(frozen=True, slots=True)
class Item:
    """What is asked for, and which of several equal ones it is."""

    work: bytes
    occurrence: int


class _Life(Enum):
    """How a try stands to the newest life that submitted."""

    SAME = auto()
    NEWER = auto()
    OLDER = auto()


def submit_tasks(
    wire: Wire, submitter: Submitter, tasks: Sequence[EncodedTask], *, can_cancel: bool = True
) -> Script[list[SubmitResult]]:
    """Send, reattach or adopt each task, and cancel what is no longer asked for.

    :param tasks: in the order in which they are asked for.
    :param can_cancel: False where horsies cannot record a cancelled task now: the cancels are carried out later.
    """
    if any(task.id_is_given for task in tasks):
        raise InvalidTask("task_id", "is derived from the task instance when submitting; leave it out")
    items = list(_items(tasks))
    yield from lock_task_instance(submitter.namespace, submitter.task_instance)
    # Before what somebody may share is let go of: whoever shares it locks in this order, too.
    yield from _lock_keys(tasks)
    newest = yield Statement(sql_text(PACKAGE, "read_newest_life"), submitter.key)
    # Asked in the same trip, as a first submission has to know.
    first_ids = [submitter.derive_task_id(item, 1) for item in items]
    existing = yield from find_commands(wire, first_ids)
    goes_on = _goes_on(submitter, newest)
    life = max((row["life"] for row in newest), default=0) + (0 if goes_on else 1)
    recorded = (yield from _match(wire, newest, items, tasks)) if goes_on else {}

    known_ids = [row["horsies_task_id"] for row in newest]
    states = yield from read_states(wire, known_ids)
    unwanted = _unwanted(newest, recorded)
    yield from _let_go(wire, submitter, unwanted, states, can_cancel=can_cancel and wire.schema.worker_has_started)

    results: dict[int, SubmitResult] = {}
    pending: list[_Round] = []
    free = max((row["position"] for row in newest), default=-1) + 1 if goes_on else 0
    stood = _rounds_by_place(newest) if goes_on else {}
    for place, (item, task) in enumerate(zip(items, tasks, strict=True)):
        row = recorded.get(place)
        if row is None:
            position, free = (free, free + 1) if goes_on else (place, free)
            pending.append(_Round(submitter, item, position, place, stood.get(place, 0) + 1, task))
        elif row["is_to_be_cancelled"] or _asks_for_next_round(
            row["horsies_task_id"], states.get(row["horsies_task_id"])
        ):
            pending.append(_Round(submitter, item, row["position"], place, row["round"] + 1, task))
        else:
            task_id = row["horsies_task_id"]
            results[place] = _result(task_id, states[task_id], life, row["round"], place)

    known = yield from _find_unrecorded(wire, pending, existing, set(first_ids))
    # A clear asks for the work again, whoever has done it meanwhile.
    replayed = yield from _take_up_shared(wire, pending, known, is_clear=bool(newest) and not goes_on)
    yield from insert_new_tasks(wire, [r.task for r in pending if r.task.id not in known and r.task.id not in replayed])
    for item_ in pending:
        item_.horsies_task_id = replayed.get(item_.task.id, item_.task.id)
        state = known.get(item_.horsies_task_id)
        results[item_.place] = _result(item_.horsies_task_id, state, life, item_.number, item_.place)
    if pending:
        yield _record(submitter, life, pending)
    elif goes_on and submitter.tried.try_number > _last_try(newest):
        yield _see_try(submitter, newest[0])
    moved = _moved(newest, recorded) if goes_on or not tasks else []
    if moved:
        params = {**submitter.key, "life": newest[0]["life"], "items": COMPACT.encode(moved)}
        yield Statement(sql_text(PACKAGE, "move_items"), params)
    return [results[place] for place in range(len(tasks))]


@dataclass(slots=True)
class _Round:
    """A submission that is about to be recorded."""

    submitter: Submitter
    item: Item
    position: int
    place: int
    number: int
    task: EncodedTask
    horsies_task_id: str = ""
    key_digest: bytes | None = None

    def __post_init__(self) -> None:
        self.key_digest = self.task.idempotency_digest
        self.use_round(self.number)

    @property
    def columns(self) -> dict[str, object]:
        """What record_submissions.sql takes from one round, as JSON has it."""
        good_until = self.task.good_until
        return {
            "position": self.position,
            "place": None if self.place == self.position else self.place,
            "round": self.number,
            "horsies_task_id": self.horsies_task_id,
            "task_name": self.task.task_name,
            "queue_name": self.task.queue_name,
            "good_until": None if good_until is None else good_until.isoformat(),
            "work": rf"\x{self.item.work.hex()}",
            "occurrence": self.item.occurrence,
            "taken_up": self.horsies_task_id != self.task.id,
            "key_digest": None if self.key_digest is None else rf"\x{self.key_digest.hex()}",
        }

    def use_round(self, number: int) -> None:
        self.number = number
        self.task = replace(self.task, id=self.submitter.derive_task_id(self.item, number))


def _items(tasks: Sequence[EncodedTask]) -> Iterator[Item]:
    seen: Counter[bytes] = Counter()
    for task in tasks:
        yield Item(task.work, seen[task.work])
        seen[task.work] += 1


# -- which life ----------------------------------------------------------------------------------------------------


def _goes_on(submitter: Submitter, newest: Rows) -> bool:
    """Whether this try belongs to the life that submitted last."""
    for row in newest:
        if row["base_url"] and submitter.base_url and row["base_url"] != submitter.base_url:
            raise NamespaceTaken(
                f"{submitter.task_instance} was submitted before by the Airflow deployment at {row['base_url']}, "
                f"and this one is {submitter.base_url}. Deployments that share a horsies database must differ in "
                f"the 'namespace' of their connection's extra (here it is {submitter.namespace!r}). If this is the "
                "same deployment under a new URL, run 'airflow horsies db change-base-url'"
            )
    if not newest:
        return False
    last = max(newest, key=lambda row: int(row["try_number"]))
    match _compare(submitter.tried, last):
        case _Life.SAME:
            if submitter.tried.try_number < _last_try(newest):
                raise StaleSubmission(
                    f"{submitter.task_instance} was taken for dead in try {submitter.tried.try_number}, and try "
                    f"{_last_try(newest)} asked for {last['horsies_task_id']}; this try submits nothing"
                )
            return True
        case _Life.NEWER:
            return False
        case _Life.OLDER:
            raise StaleSubmission(
                f"{submitter.task_instance} has been cleared since, or its run was made again, and the newer one has "
                f"submitted {last['horsies_task_id']}; this try submits nothing"
            )


def _last_try(newest: Rows) -> int:
    """The newest try that asked for something, whether or not it had to send it."""
    tries: list[int] = [max(row["try_number"], row["seen_try"] or 0) for row in newest]
    return max(tries)


def _compare(tried: AirflowTry, row: Row) -> _Life:
    """Where what Airflow records cannot tell, a newer life: running again is right, an old value is wrong."""
    if not _is_same_run(tried, row):
        began: datetime | None = row["run_started_at"]
        is_earlier = began is not None and tried.run_started_at is not None and tried.run_started_at < began
        return _Life.OLDER if is_earlier else _Life.NEWER
    if row["clear_number"] is None:
        # Recorded by a release that did not keep it: certain only where nothing of the run was ever cleared.
        return _Life.SAME if tried.clear_number == 0 else _Life.NEWER
    if tried.clear_number != row["clear_number"]:
        return _Life.NEWER if tried.clear_number > row["clear_number"] else _Life.OLDER
    if tried.max_tries != row["max_tries"]:
        return _Life.OLDER if tried.try_number < row["try_number"] else _Life.NEWER
    return _Life.SAME


def _is_same_run(tried: AirflowTry, row: Row) -> bool:
    if tried.run_key is not None and row["run_key"] is not None:
        return bool(tried.run_key == row["run_key"])
    return bool(tried.run_started_at == row["run_started_at"])


# -- which item ----------------------------------------------------------------------------------------------------


def _match(wire: Wire, newest: Rows, items: Sequence[Item], tasks: Sequence[EncodedTask]) -> Script[dict[int, Row]]:
    """What was recorded of each item, by its place in the list."""
    rows = {Item(bytes(row["work"]), row["occurrence"]): row for row in newest if row["work"] is not None}
    unknown = [row for row in newest if row["work"] is None]
    if unknown:
        yield from _find_works(wire, unknown, rows, tasks)
    return {place: rows[item] for place, item in enumerate(items) if item in rows}


def _find_works(
    wire: Wire, unknown: Sequence[Row], rows: dict[Item, Row], tasks: Sequence[EncodedTask]
) -> Script[None]:
    """Of what a release submitted that recorded no work: by the arguments, where horsies still has them, else by the
    fingerprint of the item that stands where it stood."""
    ids = [row["horsies_task_id"] for row in unknown]
    found = yield from read_tasks(wire, ids, whole=True)
    commands = yield from find_commands(wire, ids)
    for row in unknown:
        task_id, position = row["horsies_task_id"], row["position"]
        task, command = found.get(task_id), commands.get(task_id)
        if task is not None and task.kwargs is not None:
            work = work_of(task.task_name, task.kwargs)
        elif position < len(tasks) and (command is None or _is_as_sent(tasks[position], row, command)):
            work = tasks[position].work
        else:
            continue
        occurrence = next(n for n in count() if Item(work, n) not in rows)
        rows[Item(work, occurrence)] = row


def _is_as_sent(task: EncodedTask, row: Row, command: FoundCommand) -> bool:
    """The deadline is often counted from the submission, so that of each try differs."""
    return is_same_command(as_sent(task, queue_name=row["queue_name"], good_until=row["good_until"]), command)


def _unwanted(newest: Rows, recorded: Mapping[int, Row]) -> list[Row]:
    wanted = {row["position"] for row in recorded.values()}
    return [row for row in newest if row["position"] not in wanted and row["place"] != NO_LONGER_ASKED_FOR]


def _rounds_by_place(newest: Rows) -> dict[int, int]:
    """How many rounds there were at each place: what is asked for instead of something else is another one."""
    rounds: dict[int, int] = {}
    for row in newest:
        place = row["position"] if row["place"] in (None, NO_LONGER_ASKED_FOR) else row["place"]
        rounds[place] = max(rounds.get(place, 0), row["round"])
    return rounds


def _moved(newest: Rows, recorded: Mapping[int, Row]) -> list[dict[str, int]]:
    """Items that stand elsewhere now, were let go of before, or are no longer asked for."""
    places = {row["position"]: place for place, row in recorded.items()}
    moved = []
    for row in newest:
        stands = row["position"] if row["place"] is None else row["place"]
        place = places.get(row["position"], NO_LONGER_ASKED_FOR)
        if place != stands or (place >= 0 and row["released_at"] is not None):
            moved.append({"position": row["position"], "place": place})
    return moved


def _let_go(
    wire: Wire, submitter: Submitter, unwanted: Collection[Row], states: Mapping[str, TaskState], *, can_cancel: bool
) -> Script[None]:
    """What was left running is no longer wanted here; a task that others share goes on."""
    live = [row["horsies_task_id"] for row in unwanted if _is_live(states.get(row["horsies_task_id"]))]
    if not live:
        return
    if can_cancel and len(live) <= CANCELS_AT_ONCE:
        yield from cancel_unless_shared(wire, submitter.namespace, submitter.task_instance, live)
    else:
        yield from request_cancel(submitter.namespace, submitter.task_instance, live)


def _is_live(state: TaskState | None) -> bool:
    return state is not None and not state.is_terminal


def _asks_for_next_round(task_id: str, state: TaskState | None) -> bool:
    """Airflow tries again what ended badly; what runs is reattached to, and what succeeded is adopted."""
    match state:
        case None:
            raise TaskNotFound(
                f"horsies no longer keeps task {task_id}, which this task instance sent: it is past its retention, "
                "so its outcome is unknown. Clear the task instance to run it again",
                task_id=task_id,
            )
        case TaskState.PENDING | TaskState.CLAIMED | TaskState.RUNNING | TaskState.COMPLETED:
            return False
        case TaskState.FAILED | TaskState.EXPIRED | TaskState.CANCELLED:
            return True
        case _:
            assert_never(state)


def _find_unrecorded(
    wire: Wire, pending: Sequence[_Round], found: dict[str, FoundCommand], asked: set[str]
) -> Script[dict[str, TaskState]]:
    """Tasks that exist under our derived ids though the ledger lost them: taken up, or followed by a round.

    Inserting over one would be worse than doubling: where finished tasks are moved, a row whose id is already
    in the history can never be finished.
    """
    known: dict[str, TaskState] = {}
    unchecked = {item.task.id: item for item in pending}
    while unchecked:
        found |= yield from find_commands(wire, list(unchecked.keys() - asked))
        asked |= unchecked.keys()
        next_unchecked: dict[str, _Round] = {}
        existing = found.keys() & unchecked.keys()
        recorded = (yield from _find_recorded(existing)) if existing else set()
        for task_id in existing:
            item, command = unchecked[task_id], found[task_id]
            if task_id in recorded or _asks_for_next_round(task_id, command.state):
                item.use_round(item.number + 1)
                next_unchecked[item.task.id] = item
            else:
                yield from _require_same_work(wire, item, command)
                known[task_id] = command.state
        unchecked = next_unchecked
    return known


def _require_same_work(wire: Wire, item: _Round, command: FoundCommand) -> Script[None]:
    """The id was derived from the work; queue, priority and deadlines may differ."""
    if is_same_command(item.task, command):
        return
    task = (yield from read_tasks(wire, [item.task.id], whole=True)).get(item.task.id)
    if task is None or task.kwargs is None or work_of(task.task_name, task.kwargs) == item.item.work:
        return
    raise TaskIdTaken(
        f"a task with the id {item.task.id} exists already and was sent with other arguments",
        task_id=item.task.id,
        queue=item.task.queue_name,
    )


def _find_recorded(task_ids: Collection[str]) -> Script[set[str]]:
    rows = yield Statement(sql_text(PACKAGE, "find_recorded"), {"ids": sorted(task_ids)})
    return {row["horsies_task_id"] for row in rows}


def _lock_keys(tasks: Sequence[EncodedTask]) -> Script[None]:
    digests = sorted({task.idempotency_digest for task in tasks if task.idempotency_digest is not None})
    if digests:
        yield Statement(sql_text(PACKAGE, "lock_keys"), {"digests": digests})


def _take_up_shared(
    wire: Wire, pending: Sequence[_Round], known: dict[str, TaskState], *, is_clear: bool
) -> Script[dict[str, str]]:
    """The tasks that others asked for under the same idempotency key, by the ids they stand for.

    One that ended badly, or that horsies no longer keeps, is no answer to a new question: another one of the same key
    is, or else the work is sent without the key.
    """
    keyed = [item for item in pending if item.key_digest is not None and item.task.id not in known]
    if not keyed:
        return {}
    if is_clear:
        for item in keyed:
            item.task = replace(item.task, idempotency_digest=None)
        return {}
    claimed = yield from claim_idempotency_keys(wire, [item.task for item in keyed])
    taken_keys = [item for item in keyed if item.task.id in claimed]
    if not taken_keys:
        return {}
    candidates = yield from _find_candidates(wire, taken_keys, claimed)
    every = {task_id for ids in candidates.values() for task_id in ids}
    to_be_cancelled = yield from lock_shared_tasks(every)
    states = yield from read_states(wire, sorted(every))
    taken = {}
    for item in taken_keys:
        for task_id in candidates[item.task.id]:
            state = states.get(task_id)
            if task_id not in to_be_cancelled and state is not None and not _asks_for_next_round(task_id, state):
                taken[item.task.id] = task_id
                known[task_id] = state
                break
        else:
            item.task = replace(item.task, idempotency_digest=None)
    return taken


def _find_candidates(
    wire: Wire, keyed: Sequence[_Round], claimed: Mapping[str, EarlierTask]
) -> Script[dict[str, list[str]]]:
    """The task that holds the key of each item, and what others sent when that had ended badly."""
    holders = {item.task.id: claimed[item.task.id] for item in keyed}
    for item in keyed:
        holder = holders[item.task.id]
        if not holder.is_same_command and (yield from _work_of(wire, holder.task_id)) != item.item.work:
            raise TaskIdTaken(
                f"the idempotency key belongs to task {holder.task_id}, which was sent with other arguments",
                task_id=holder.task_id,
            )
    rows = yield Statement(sql_text(PACKAGE, "find_shared"), {"digests": [item.key_digest for item in keyed]})
    return {
        item.task.id: [
            holders[item.task.id].task_id,
            *(
                row["horsies_task_id"]
                for row in rows
                if (bytes(row["key_digest"]), bytes(row["work"])) == (item.key_digest, item.item.work)
            ),
        ]
        for item in keyed
    }


def _work_of(wire: Wire, task_id: str) -> Script[bytes | None]:
    """What a task was asked to do; None where nobody knows any more."""
    rows = yield Statement(sql_text(PACKAGE, "find_works"), {"ids": [task_id]})
    if rows:
        return bytes(rows[0]["work"])
    task = (yield from read_tasks(wire, [task_id], whole=True)).get(task_id)
    return None if task is None or task.kwargs is None else work_of(task.task_name, task.kwargs)


def _result(task_id: str, state: TaskState | None, life: int, number: int, position: int) -> SubmitResult:
    """``state`` is None for a task that was inserted just now."""
    if state is None:
        outcome = SubmitOutcome.SENT
    elif state is TaskState.COMPLETED:
        outcome = SubmitOutcome.ADOPTED
    else:
        outcome = SubmitOutcome.REATTACHED
    return SubmitResult(
        task_id=task_id,
        outcome=outcome,
        state=state or TaskState.PENDING,
        life=life,
        round=number,
        position=position,
    )


def _see_try(submitter: Submitter, row: Row) -> Statement:
    place = {name: row[name] for name in ("life", "position", "round")}
    params = {**submitter.key, **place, "try_number": submitter.tried.try_number}
    return Statement(sql_text(PACKAGE, "see_try"), params)


def _record(submitter: Submitter, life: int, rounds: Sequence[_Round]) -> Statement:
    tried = submitter.tried
    began = tried.run_started_at
    return Statement(
        sql_text(PACKAGE, "record_submissions"),
        {
            **submitter.key,
            "life": life,
            "try_number": tried.try_number,
            "run_key": tried.run_key,
            "run_started_at": None if began is None else began.astimezone(UTC),
            "clear_number": tried.clear_number,
            "max_tries": tried.max_tries,
            "base_url": submitter.base_url,
            "rounds": COMPACT.encode([item.columns for item in rounds]),
        },
    )
