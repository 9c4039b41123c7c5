"""The rules of sending, as scripts that run in one transaction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_horsies.core.cluster import RetentionClass
from airflow_horsies.core.spec import DEFAULT_RETENTION, FOREVER
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import (
    InvalidTask,
    TaskIdTaken,
)
from airflow_horsies.wire.cluster import read_retention_classes
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.reading import FoundCommand, find_commands, is_same_command
from airflow_horsies.wire.statements import Wire

COPIED_FROM = 100
# Workers register these two themselves when they start.
BUILT_IN_RETENTION = frozenset({DEFAULT_RETENTION, FOREVER})


@dataclass(frozen=True, slots=True)
class EarlierTask:
    """The task that owns an idempotency key."""

    task_id: str
    is_same_command: bool


def enqueue_task(wire: Wire, task: EncodedTask, *, is_rerun: bool = False) -> Script[str]:
    """Send one task and return its id; repeating an id or key with the same command returns the first task."""
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
    """Send all tasks or none; an id or key that is already in use is refused."""
    if is_rerun and (yield from _were_sent(wire, tasks)):
        return [task.id for task in tasks]
    require_distinct_ids(tasks)
    replayed = yield from replay_idempotency_keys(wire, tasks)
    for task in tasks:
        if task.id in replayed:
            raise key_in_use(task, replayed[task.id])
    for task_id in (yield from _find_given(wire, tasks)):
        raise id_in_use(task_id)
    yield from insert_new_tasks(wire, tasks)
    return [task.id for task in tasks]


def insert_new_tasks(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[None]:
    """Insert rows with unused ids, after the checks that apply to every row."""
    yield from require_retention_classes(wire, {task.retention_class_key for task in tasks})
    if are_many(tasks):
        (row,) = yield wire.read_transaction_time()
        yield wire.copy_tasks(tasks, row["at"])
    elif tasks:
        yield wire.enqueue_tasks(tasks)


def are_many(tasks: Sequence[EncodedTask]) -> bool:
    """Whether to use COPY, which is faster for many tasks and impossible in a pipeline."""
    return len(tasks) >= COPIED_FROM


def require_retention_classes(wire: Wire, keys: Collection[str]) -> Script[None]:
    """A task of an unknown class would run, never finish, and occupy a slot of its worker."""
    if not wire.supports_retention_classes:
        for key in set(keys) - {DEFAULT_RETENTION}:
            raise InvalidTask(
                "retention",
                f"{key!r} needs horsies 0.5 or newer. Leave it out: with older releases the workers' settings decide",
            )
    custom = set(keys) - BUILT_IN_RETENTION
    if not custom:
        return
    known = {item.key for item in (yield from read_retention_classes(wire))} | BUILT_IN_RETENTION
    if unknown := custom - known:
        raise InvalidTask(
            "retention",
            f"{min(unknown)!r} is not a retention class of this database. Use one of {', '.join(sorted(known))}",
        )


def class_of_queue(classes: Collection[RetentionClass], queue: str) -> str | None:
    """The class that workers assigned to the queue; None if there is none, or more than one over time."""
    named = re.compile(rf"q_{re.escape(queue)}_\d+[smhd]")
    keys = [known.key for known in classes if named.fullmatch(known.key)]
    return keys[0] if len(keys) == 1 else None


def claim_idempotency_keys(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, EarlierTask]]:
    """Reserve the idempotency keys; returns the earlier task of each task whose key is in use, by id."""
    keyed = [task for task in tasks if task.idempotency_digest is not None]
    if not keyed:
        return {}
    if not wire.supports_idempotency_keys:
        raise InvalidTask(
            "idempotency_key",
            "needs horsies 0.5 or newer. Set task_id instead with this database",
        )
    require_distinct_keys(keyed)
    return {
        row["id"]: EarlierTask(row["task_id"], is_same_command=row["outcome"] == "REPLAY")
        for row in (yield wire.claim_idempotency_keys(keyed))
        if row["outcome"] in ("REPLAY", "CONFLICT")
    }


def replay_idempotency_keys(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, str]]:
    """As claim_idempotency_keys; an earlier task with another command is an error."""
    claimed = yield from claim_idempotency_keys(wire, tasks)
    for earlier in claimed.values():
        if not earlier.is_same_command:
            raise key_of_other_command(earlier.task_id)
    return {task_id: earlier.task_id for task_id, earlier in claimed.items()}


def require_same_command(task: EncodedTask, found: FoundCommand) -> None:
    if not is_same_command(task, found):
        raise TaskIdTaken(
            f"A task with the id {task.id} already exists, with other arguments or options. Use another task_id.",
            task_id=task.id,
            queue=task.queue_name,
        )


def require_distinct_ids(tasks: Sequence[EncodedTask]) -> None:
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        repeated = [task_id for task_id, count in Counter(ids).items() if count > 1]
        raise InvalidTask("task_id", f"{repeated[0]} is given more than once. Nothing was sent. Use each id once")


def require_distinct_keys(tasks: Sequence[EncodedTask]) -> None:
    digests = [task.idempotency_digest for task in tasks if task.idempotency_digest is not None]
    if len(set(digests)) != len(digests):
        raise InvalidTask("idempotency_key", "is given twice for the same task name. Use a different key for each task")


def key_of_other_command(owner: str) -> TaskIdTaken:
    return TaskIdTaken(
        f"The idempotency key belongs to task {owner}, which was sent with other arguments or options. Use another "
        "key.",
        task_id=owner,
    )


def key_in_use(task: EncodedTask, owner: str) -> TaskIdTaken:
    return TaskIdTaken(
        f"The idempotency key of {task.task_name} is already in use by task {owner}. Nothing was sent. Use another "
        "key.",
        task_id=owner,
        queue=task.queue_name,
    )


def id_in_use(task_id: str) -> TaskIdTaken:
    return TaskIdTaken(
        f"A task with the id {task_id} already exists. Nothing was sent. Use another task_id.", task_id=task_id
    )


def _were_sent(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[bool]:
    """Whether the previous run, whose commit was interrupted, was committed."""
    found = yield from find_commands(wire, [task.id for task in tasks])
    return all(task.id in found and is_same_command(task, found[task.id]) for task in tasks)


def _find_given(wire: Wire, tasks: Sequence[EncodedTask]) -> Script[dict[str, FoundCommand]]:
    """The existing tasks with ids from the caller; generated ids are always new."""
    given = [task.id for task in tasks if task.id_is_given]
    if not given:
        return {}
    yield wire.lock_task_ids(given)
    return (yield from find_commands(wire, given))
