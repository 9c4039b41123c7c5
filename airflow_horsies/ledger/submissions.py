"""Exactly one horsies task per task instance, position, life and round, whatever dies in between.

A life is what happens between two clears of a task instance; within a life, rounds count submissions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import assert_never

from airflow_horsies.exceptions import InvalidTask, NamespaceTaken, StaleSubmission, TaskNotFound
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.models import (
    LIVE_STATES,
    CancelOutcome,
    Slice,
    Submission,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskState,
)
from airflow_horsies.wire.encoding import COMPACT, EncodedTask
from airflow_horsies.wire.scripts import (
    FoundCommand,
    cancel_task,
    claim_idempotency_keys,
    find_commands,
    insert_new_tasks,
    read_states,
    require_same_command,
)
from airflow_horsies.wire.statement import Row, Script, Statement, sql_text
from airflow_horsies.wire.statements import Wire

# Never change this value: ids derived from it are in databases.
TASK_ID_NAMESPACE = uuid.UUID("5d1a0f0e-7f0c-5b39-9c58-0a8f3f0c6f51")
PRUNE_BATCH = 1_000
# Far more than any submitter takes between two statements.
MOST_IDLE_SECONDS = 60
# The version of the ledger that has them.
SINCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """The task instance that submits, in which life and try, from which deployment."""

    namespace: str
    base_url: str
    task_instance: TaskInstanceKey
    life: int
    try_number: int
    run_started_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("life", "try_number"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidTask(name, f"must be a whole number from 1 on, not {value!r}")

    @property
    def key(self) -> dict[str, str | int]:
        return _key(self.namespace, self.task_instance)

    def derive_task_id(self, position: int, round_: int) -> str:
        """The same submission always gets the same id."""
        name = json.dumps([*self.key.values(), position, self.life, round_], separators=(",", ":"))
        return str(uuid.uuid5(TASK_ID_NAMESPACE, name))


def submit_tasks(wire: Wire, submitter: Submitter, tasks: Sequence[EncodedTask]) -> Script[list[SubmitResult]]:
    """Send, reattach or adopt each task; ``tasks`` are in order of their position."""
    if any(task.id_is_given for task in tasks):
        raise InvalidTask("task_id", "is derived from the task instance when submitting; leave it out")
    key = json.dumps(list(submitter.key.values()))
    yield Statement(sql_text(PACKAGE, "lock_task_instance"), {"key": key, "idle_seconds": MOST_IDLE_SECONDS})
    submitted = yield Statement(sql_text(PACKAGE, "read_latest_submissions"), submitter.key)
    # Asked in the same trip, as a first submission has to know.
    first_ids = [submitter.derive_task_id(position, 1) for position in range(len(tasks))]
    existing = yield from find_commands(wire, first_ids)
    latest = {row["position"]: row for row in submitted}
    _require_ours(submitter, latest.values())
    states = yield from read_states(wire, [row["horsies_task_id"] for row in latest.values()])
    outdated = {position for position, row in latest.items() if _is_outdated(submitter, row)}
    yield from _cancel_outdated(wire, [latest[position] for position in outdated], states)

    results: dict[int, SubmitResult] = {}
    pending: list[_Round] = []
    for position, task in enumerate(tasks):
        row = latest.get(position)
        if row is None or row["life"] < submitter.life:
            # An idempotency key guards the first submission; a clear or a retry asks for the work again.
            keyed = task if row is None else replace(task, idempotency_digest=None)
            pending.append(_Round(submitter, position, 1, keyed))
        elif position in outdated or _asks_for_next_round(row["horsies_task_id"], states.get(row["horsies_task_id"])):
            keyless = replace(task, idempotency_digest=None)
            pending.append(_Round(submitter, position, row["round"] + 1, keyless))
        else:
            state = states[row["horsies_task_id"]]
            results[position] = _result(row["horsies_task_id"], state, submitter.life, row["round"], position)

    known = yield from _find_unrecorded(wire, pending, existing, set(first_ids))
    replayed = yield from claim_idempotency_keys(wire, [r.task for r in pending if r.task.id not in known])
    known |= yield from _states_of_replayed(wire, replayed)
    yield from insert_new_tasks(wire, [r.task for r in pending if r.task.id not in known and r.task.id not in replayed])
    for item in pending:
        item.horsies_task_id = replayed.get(item.task.id, item.task.id)
        item_state = known.get(item.horsies_task_id)
        results[item.position] = _result(item.horsies_task_id, item_state, submitter.life, item.number, item.position)
    if pending:
        yield _record(submitter, pending)
    return [results[position] for position in range(len(tasks))]


def read_submissions(namespace: str, task_instance: TaskInstanceKey) -> Script[list[Submission]]:
    """Everything a task instance ever submitted, oldest first."""
    rows = yield Statement(sql_text(PACKAGE, "read_submissions"), _key(namespace, task_instance))
    return [_decode(row) for row in rows]


def read_submissions_of_task(horsies_task_id: str) -> Script[list[Submission]]:
    """Which task instances stand behind a horsies task."""
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_task"), {"horsies_task_id": horsies_task_id})
    return [_decode(row) for row in rows]


def read_submissions_of_tasks(ids: Collection[str]) -> Script[list[Submission]]:
    """Which task instances stand behind horsies tasks, newest first, and whether each has submitted anew since."""
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_tasks"), {"ids": list(ids)})
    return [_decode(row) for row in rows]


def read_submissions_of_run(namespace: str, dag_id: str, run_id: str, *, limit: int) -> Script[list[Submission]]:
    """What each task instance of a DAG run submitted last."""
    run = {"namespace": namespace, "dag_id": dag_id, "run_id": run_id}
    rows = yield Statement(sql_text(PACKAGE, "read_submissions_of_run"), {**run, "limit": limit})
    return [_decode(row) for row in rows]


def cancel_and_signal(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[CancelOutcome]:
    """Cancel, and tell a task that is running to stop: horsies alone would let its code run on."""
    outcome, found = yield from cancel_task(wire, task_id, states=states)
    if outcome is CancelOutcome.CANCELLED and found is TaskState.RUNNING:
        yield Statement(sql_text(PACKAGE, "record_signal"), {"horsies_task_id": task_id, "signal": "CANCEL"})
    return outcome


def cancel_many_and_signal(wire: Wire, task_ids: Collection[str]) -> Script[dict[str, CancelOutcome]]:
    """Cancel those that are live; in the order of their ids, so that two of these cannot deadlock."""
    outcomes: dict[str, CancelOutcome] = {}
    for task_id, state in sorted((yield from read_states(wire, task_ids)).items()):
        if state is TaskState.CANCELLED:
            outcomes[task_id] = CancelOutcome.ALREADY_CANCELLED
        elif state.is_terminal:
            outcomes[task_id] = CancelOutcome.ALREADY_FINISHED
        else:
            outcomes[task_id] = yield from cancel_and_signal(wire, task_id)
    return outcomes


def change_base_url(namespace: str, *, old: str, new: str) -> Script[int]:
    """The deployment moved: its submissions stay its own. Returns how many there were."""
    rows = yield Statement(sql_text(PACKAGE, "change_base_url"), {"namespace": namespace, "old": old, "new": new})
    return len(rows)


def prune(wire: Wire, *, older_than: timedelta) -> Script[int]:
    """Forget what belongs to tasks that horsies itself no longer keeps; the number of submissions forgotten."""
    pruned = 0
    after: str | None = None
    while True:
        rows = yield Statement(
            sql_text(PACKAGE, "read_prunable"),
            {"older_than_seconds": int(older_than.total_seconds()), "after": after, "limit": PRUNE_BATCH},
        )
        ids = [row["horsies_task_id"] for row in rows]
        if not ids:
            return pruned
        kept = yield from read_states(wire, ids)
        gone = [task_id for task_id in ids if task_id not in kept]
        if gone:
            (counted,) = yield Statement(sql_text(PACKAGE, "prune_tasks"), {"ids": gone})
            pruned += counted["pruned"]
        after = ids[-1]


@dataclass(slots=True)
class _Round:
    """A submission that is about to be recorded."""

    submitter: Submitter
    position: int
    number: int
    task: EncodedTask
    horsies_task_id: str = ""

    def __post_init__(self) -> None:
        self.use_round(self.number)

    @property
    def columns(self) -> dict[str, object]:
        """What record_submissions.sql takes from one round, as JSON has it."""
        good_until = self.task.good_until
        return {
            "position": self.position,
            "round": self.number,
            "horsies_task_id": self.horsies_task_id,
            "task_name": self.task.task_name,
            "queue_name": self.task.queue_name,
            "good_until": None if good_until is None else good_until.isoformat(),
        }

    def use_round(self, number: int) -> None:
        self.number = number
        self.task = replace(self.task, id=self.submitter.derive_task_id(self.position, number))


def _require_ours(submitter: Submitter, latest: Collection[Row]) -> None:
    for row in latest:
        if row["base_url"] != submitter.base_url:
            raise NamespaceTaken(
                f"{submitter.task_instance} was submitted before by the Airflow deployment at {row['base_url']}, "
                f"and this one is {submitter.base_url}. Deployments that share a horsies database must differ in "
                f"the 'namespace' of their connection's extra (here it is {submitter.namespace!r}). If this is the "
                "same deployment under a new URL, run 'airflow horsies db change-base-url'"
            )
        if row["life"] > submitter.life:
            raise StaleSubmission(
                f"{submitter.task_instance} has been cleared since and its newer life has submitted "
                f"{row['horsies_task_id']}; this try submits nothing"
            )


def _is_outdated(submitter: Submitter, row: Row) -> bool:
    """Whether a submission is of an earlier life, or of a DAG run that was deleted and made again since."""
    if row["life"] < submitter.life:
        return True
    began: datetime | None = row["run_started_at"]
    return began is not None and submitter.run_started_at is not None and began != submitter.run_started_at


def _cancel_outdated(wire: Wire, outdated: Collection[Row], states: Mapping[str, TaskState]) -> Script[None]:
    """What was left running is no longer wanted."""
    for row in outdated:
        state = states.get(row["horsies_task_id"])
        if state is not None and not state.is_terminal:
            yield from cancel_and_signal(wire, row["horsies_task_id"])


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
        for task_id in found.keys() & unchecked.keys():
            item, command = unchecked[task_id], found[task_id]
            if _asks_for_next_round(task_id, command.state):
                item.use_round(item.number + 1)
                next_unchecked[item.task.id] = item
            else:
                require_same_command(item.task, command)
                known[task_id] = command.state
        unchecked = next_unchecked
    return known


def _states_of_replayed(wire: Wire, replayed: Mapping[str, str]) -> Script[dict[str, TaskState]]:
    if not replayed:
        return {}
    return (yield from read_states(wire, list(replayed.values())))


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


def _record(submitter: Submitter, rounds: Sequence[_Round]) -> Statement:
    return Statement(
        sql_text(PACKAGE, "record_submissions"),
        {
            **submitter.key,
            "life": submitter.life,
            "try_number": submitter.try_number,
            "run_started_at": submitter.run_started_at,
            "base_url": submitter.base_url,
            "rounds": COMPACT.encode([item.columns for item in rounds]),
        },
    )


def scan_submissions(part: Slice) -> Statement:
    """The rows of a slice, cut by the time of submission."""
    return Statement(sql_text(PACKAGE, "scan_submissions"), part.params)


def sample_submissions(part: Slice, percent: float) -> Statement:
    return Statement(sql_text(PACKAGE, "sample_submissions"), {**part.params, "percent": percent})


def _key(namespace: str, instance: TaskInstanceKey) -> dict[str, str | int]:
    return {
        "namespace": namespace,
        "dag_id": instance.dag_id,
        "run_id": instance.run_id,
        "task_id": instance.task_id,
        "map_index": instance.map_index,
    }


def _decode(row: Row) -> Submission:
    good_until = row["good_until"]
    return Submission(
        horsies_task_id=row["horsies_task_id"],
        namespace=row["namespace"],
        task_instance=TaskInstanceKey(
            dag_id=row["dag_id"], run_id=row["run_id"], task_id=row["task_id"], map_index=row["map_index"]
        ),
        position=row["position"],
        life=row["life"],
        round=row["round"],
        try_number=row["try_number"],
        task_name=row["task_name"],
        queue=row["queue_name"],
        good_until=None if good_until is None else good_until.astimezone(UTC),
        submitted_at=row["submitted_at"].astimezone(UTC),
        is_latest=row.get("is_latest", True),
    )
