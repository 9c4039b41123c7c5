"""The rules of sending, reading and cancelling, as scripts of statements: each runs in one transaction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from itertools import islice
from typing import TypeVar

from airflow_horsies.exceptions import (
    InvalidTask,
    SchemaUnsupported,
    TaskIdTaken,
    TaskNotCancellable,
    TaskNotFound,
    WireError,
)
from airflow_horsies.models import (
    DEFAULT_RETENTION,
    FOREVER,
    LIVE_STATES,
    CancelOutcome,
    FailedTasks,
    PageCursor,
    QueueDepth,
    RetentionClass,
    TaskPage,
    TaskState,
    TaskView,
    WorkerState,
)
from airflow_horsies.wire.decoding import (
    decode_command,
    decode_retention_class,
    decode_state,
    decode_task,
    decode_worker,
)
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.statement import Row, Script
from airflow_horsies.wire.statements import SUMMARY_CHARS, Wire

T = TypeVar("T")

ROWS_PER_STATEMENT = 5_000
COPIED_FROM = 100
MAX_PAGE = 2_000
# Workers register these two themselves when they start.
BUILT_IN_RETENTION = frozenset({DEFAULT_RETENTION, FOREVER})
WORKERS_SEEN_WITHIN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """A task that exists, and what it was asked to do."""

    state: TaskState
    command: bytes | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class EarlierTask:
    """A task that holds an idempotency key."""

    task_id: str
    is_same_command: bool


def enqueue_task(wire: Wire, task: EncodedTask, *, is_rerun: bool = False) -> Script[str]:
    """Send one task and return its id; the same id or key with the same command again returns the first."""
    if is_rerun and (yield from _were_sent(wire, [task])):
        return task.id
    replayed = yield from replay_idempotency_keys(wire, [task])
    if replayed:
        return replayed[task.id]
    existing = yield from _find_given(wire, [task])
    if task.id in existing:
        require_same_command(task, existing[task.id])
        return task.id
    yield from insert_new_tasks(wire, [task])
    return task.id


def enqueue_tasks(wire: Wire, tasks: Sequence[EncodedTask], *, is_rerun: bool = False) -> Script[list[str]]:
    """Send all of them or none; an id or key that was used before is refused."""
    if is_rerun and (yield from _were_sent(wire, tasks)):
        return [task.id for task in tasks]
    repeated = [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]
    if repeated:
        raise InvalidTask("task_id", f"{repeated[0]} is given more than once; nothing was sent")
    replayed = yield from replay_idempotency_keys(wire, tasks)
    for task in tasks:
        if task.id in replayed:
            raise TaskIdTaken(
                f"the idempotency key of {task.task_name} was used before, by task {replayed[task.id]}; "
                "nothing was sent",
                task_id=replayed[task.id],
                queue=task.queue_name,
            )
    for task_id in (yield from _find_given(wire, tasks)):
        raise TaskIdTaken(f"a task with the id {task_id} exists already; nothing was sent", task_id=task_id)
    yield from insert_new_tasks(wire, tasks)
    return [task.id for task in tasks]


def insert_new_tasks(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[None]:
    """Insert rows whose ids are known to be unused, after the checks no row may skip."""
    yield from require_retention_classes(wire, {task.retention_class_key for task in tasks})
    if are_many(tasks):
        (row,) = yield wire.read_transaction_time()
        yield wire.copy_tasks(tasks, row["at"])
    elif tasks:
        yield wire.enqueue_tasks(tasks)


def are_many(tasks: Sequence[EncodedTask]) -> bool:
    """Whether they are copied, which is faster for many and cannot be done in a pipeline."""
    return len(tasks) >= COPIED_FROM


def require_retention_classes(wire: Wire, keys: Collection[str]) -> Script[None]:
    """A row of an unknown class would run, could never be finished and would hold its worker's slot."""
    if not wire.supports_retention_classes:
        for key in set(keys) - {DEFAULT_RETENTION}:
            raise InvalidTask(
                "retention",
                f"{key!r} needs horsies 0.5 or newer; with older ones the workers' settings decide",
            )
    custom = set(keys) - BUILT_IN_RETENTION
    if not custom:
        return
    known = {item.key for item in (yield from read_retention_classes(wire))} | BUILT_IN_RETENTION
    if unknown := custom - known:
        raise InvalidTask(
            "retention",
            f"{min(unknown)!r} is not a retention class of this database; known are {', '.join(sorted(known))}",
        )


def read_tasks(
    wire: Wire, ids: Collection[str], *, whole: bool = True, message_chars: int = SUMMARY_CHARS
) -> Script[dict[str, TaskView]]:
    """The tasks that exist, by id; without arguments and results, and with cut messages, where not the whole is asked
    for."""
    found: dict[str, TaskView] = {}
    for chunk in _chunks(list(ids)):
        rows = yield wire.read_tasks(chunk, whole=whole, message_chars=message_chars)
        found.update((row["id"], decode_task(row)) for row in rows)
    return found


def read_task(wire: Wire, task_id: str) -> Script[TaskView]:
    found = yield from read_tasks(wire, [task_id])
    if task_id not in found:
        raise task_not_found(task_id)
    return found[task_id]


def read_states(wire: Wire, ids: Collection[str]) -> Script[dict[str, TaskState]]:
    """The states of the tasks that exist, by id; cheaper than reading them whole."""
    found = yield from read_statuses(wire, ids)
    return {task_id: decode_state(task_id, status) for task_id, status in found.items()}


def read_statuses(wire: Wire, ids: Collection[str]) -> Script[dict[str, str]]:
    """As read_states, not decoded: for those who read for many, of whom one must not fail the others."""
    found: dict[str, str] = {}
    for chunk in _chunks(list(ids)):
        rows = yield wire.read_states(chunk)
        found.update((row["id"], row["status"]) for row in rows)
    return found


def read_waited_for(wire: Wire, ids: Collection[str]) -> Script[dict[str, TaskState]]:
    """As read_states; TaskNotFound for one that does not exist, unless it may be on its way to the history."""
    found = yield from read_states(wire, ids)
    absent = set(ids) - found.keys()
    if absent and not wire.schema.cutover_is_pending:
        raise task_not_found(min(absent))
    return found


def count_states(wire: Wire, ids: str) -> Script[dict[TaskState, int]]:
    """How many of the tasks that exist are in which state; ``ids`` is an array in the words of Postgres."""
    rows = yield wire.count_states(ids)
    return {decode_state("(one of many)", row["status"]): row["count"] for row in rows}


def order_tasks(
    wire: Wire, ids: str, *, sort: str, descending: bool, state: TaskState | None, limit: int, offset: int
) -> Script[tuple[int, list[str]]]:
    """How many of the tasks there are in a state, or at all, and the ids of a page of them."""
    rows = yield wire.order_tasks(ids, sort=sort, descending=descending, state=state, limit=limit, offset=offset)
    return rows[0]["total"], [row["id"] for row in rows if row["id"] is not None]


def list_tasks(
    wire: Wire,
    *,
    states: Collection[TaskState] | None = None,
    queue: str | None = None,
    task_name: str | None = None,
    error_code: str | None = None,
    before: PageCursor | None = None,
    limit: int = 50,
    with_attempts: bool = False,
) -> Script[TaskPage]:
    """One page, newest first. One row more than asked for tells whether there is a next page."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidTask("limit", f"must be from 1 to {MAX_PAGE}, not {limit!r}")
    rows = yield wire.list_tasks(
        states=states,
        queue=queue,
        task_name=task_name,
        error_code=error_code,
        before=before,
        limit=limit + 1,
        with_attempts=with_attempts,
    )
    tasks = tuple(decode_task(row) for row in rows[:limit])
    more = len(rows) > limit
    return TaskPage(tasks=tasks, next=PageCursor(at=tasks[-1].enqueued_at, task_id=tasks[-1].id) if more else None)


def find_failed(wire: Wire, *, window: int, limit: int, before: PageCursor | None = None) -> Script[FailedTasks]:
    """Those that failed or expired among the ``window`` tasks sent last, newest first and at most ``limit``."""
    rows = yield wire.find_failed(window=window, limit=limit, before=before)
    found = [row for row in rows if row["id"] is not None]
    ids = tuple(row["id"] for row in found)
    span = rows[0]
    if len(found) == limit:
        searched_to = PageCursor(at=found[-1]["enqueued_at"].astimezone(UTC), task_id=found[-1]["id"])
        return FailedTasks(ids=ids, searched_to=searched_to.at, next=searched_to)
    if span["searched_to"] is None:
        return FailedTasks(ids=ids, searched_to=None, next=None)
    searched_to = PageCursor(at=span["searched_to"].astimezone(UTC), task_id=span["last_id"])
    return FailedTasks(ids=ids, searched_to=searched_to.at, next=searched_to if span["searched"] == window else None)


def cancel_task(
    wire: Wire, task_id: str, *, states: Collection[TaskState] = LIVE_STATES
) -> Script[tuple[CancelOutcome, TaskState]]:
    """Cancel, and tell the outcome and the state the task was found in."""
    if not wire.schema.worker_has_started:
        raise SchemaUnsupported(
            "no horsies worker has ever started on this database, so it cannot record a cancelled task yet. "
            "Start a worker once, then cancel"
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
            raise TaskNotCancellable(f"task {task_id} is {state}", task_id=task_id)
        case "SOURCE_STATE_CONFLICT":
            raise TaskNotCancellable(
                f"task {task_id} belongs to a horsies workflow; cancel the workflow instead", task_id=task_id
            )
    raise WireError(f"cancelling task {task_id} answered {outcome!r}, which this release does not know")


def read_queues(wire: Wire) -> Script[list[QueueDepth]]:
    """Every queue that holds live tasks or is served by a live worker."""
    depths = {row["queue_name"]: row for row in (yield wire.read_queues())}
    workers = yield from read_workers(wire)
    served = Counter(queue for worker in workers if worker.alive for queue in worker.queues)
    return [_queue_depth(name, depths.get(name), served[name]) for name in sorted({*depths, *served})]


def read_workers(wire: Wire, *, within: timedelta = WORKERS_SEEN_WITHIN) -> Script[list[WorkerState]]:
    """The last word of each worker heard of lately, live ones first."""
    return [decode_worker(row) for row in (yield wire.read_workers(within=within))]


def read_retention_classes(wire: Wire) -> Script[list[RetentionClass]]:
    """The classes a task may name; none where each worker's own settings decide."""
    if not wire.supports_retention_classes:
        return []
    return [decode_retention_class(row) for row in (yield wire.read_retention_classes())]


def class_of_queue(classes: Collection[RetentionClass], queue: str) -> str | None:
    """The class that workers have mapped the queue to; None where they have not, or to several one after another."""
    named = re.compile(rf"q_{re.escape(queue)}_\d+[smhd]")
    keys = [known.key for known in classes if named.fullmatch(known.key)]
    return keys[0] if len(keys) == 1 else None


def task_not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"there is no task {task_id} in this database: it never existed, or it finished and is past its retention",
        task_id=task_id,
    )


def claim_idempotency_keys(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, EarlierTask]]:
    """Reserve the idempotency keys; the ids of tasks whose key was used before, with the earlier task."""
    keyed = [task for task in tasks if task.idempotency_digest is not None]
    if not keyed:
        return {}
    if not wire.supports_idempotency_keys:
        raise InvalidTask(
            "idempotency_key",
            "needs horsies 0.5 or newer; with this database give the task an id of your own",
        )
    if len({task.idempotency_digest for task in keyed}) != len(keyed):
        raise InvalidTask("idempotency_key", "is given twice for the same task name")
    return {
        row["id"]: EarlierTask(row["task_id"], is_same_command=row["outcome"] == "REPLAY")
        for row in (yield wire.claim_idempotency_keys(keyed))
        if row["outcome"] in ("REPLAY", "CONFLICT")
    }


def replay_idempotency_keys(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, str]]:
    """As claim_idempotency_keys; an earlier task that differs in anything is an error."""
    claimed = yield from claim_idempotency_keys(wire, tasks)
    for earlier in claimed.values():
        if not earlier.is_same_command:
            raise TaskIdTaken(
                f"the idempotency key belongs to task {earlier.task_id}, which was sent with other arguments or "
                "options",
                task_id=earlier.task_id,
            )
    return {task_id: earlier.task_id for task_id, earlier in claimed.items()}


def find_commands(wire: Wire, ids: Sequence[str]) -> Script[dict[str, FoundCommand]]:
    """What exists under these ids, live or finished."""
    answers = []
    for chunk in _chunks(ids):
        answers.append((yield wire.find_commands(chunk)))
    return {
        row["id"]: FoundCommand(decode_state(row["id"], row["status"]), decode_command(row))
        for rows in answers
        for row in rows
    }


def is_same_command(task: EncodedTask, found: FoundCommand) -> bool:
    return found.command in (task.command_fingerprint, task.command_columns)


def require_same_command(task: EncodedTask, found: FoundCommand) -> None:
    if not is_same_command(task, found):
        raise TaskIdTaken(
            f"a task with the id {task.id} exists already and was sent with other arguments or options",
            task_id=task.id,
            queue=task.queue_name,
        )


def _were_sent(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[bool]:
    """Whether the run before this one, whose commit was cut short, happened after all."""
    found = yield from find_commands(wire, [task.id for task in tasks])
    return all(task.id in found and is_same_command(task, found[task.id]) for task in tasks)


def _find_given(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, FoundCommand]]:
    """What exists under the ids the caller chose; minted ids are new by construction."""
    given = [task.id for task in tasks if task.id_is_given]
    if not given:
        return {}
    yield wire.lock_task_ids(given)
    return (yield from find_commands(wire, given))


def _queue_depth(name: str, row: Row | None, served_by: int) -> QueueDepth:
    if row is None:
        return QueueDepth(
            queue=name, ready=0, delayed=0, claimed=0, running=0, oldest_ready_at=None, served_by=served_by
        )
    oldest = row["oldest_ready_at"]
    return QueueDepth(
        queue=name,
        ready=row["ready"],
        delayed=row["delayed"],
        claimed=row["claimed"],
        running=row["running"],
        oldest_ready_at=None if oldest is None else oldest.astimezone(UTC),
        served_by=served_by,
    )


def _chunks(items: Sequence[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, ROWS_PER_STATEMENT)):
        yield chunk
