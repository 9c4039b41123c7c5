"""Sends signals to tasks and workflows."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from airflow_horsies.client.calls import Scope, migrate_ledger, read_latest_task_ids
from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Transaction
from airflow_horsies.core.signals import (
    MAX_DEDUP_CHARS,
    MAX_SENDER_CHARS,
    SentSignal,
    encode_payload,
    require_signal_name,
)
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.validation import require_task_id, require_text
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import InvalidTask, SignalRefused, TaskNotFound
from airflow_horsies.ledger import messages
from airflow_horsies.ledger.messages import Parking
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.wire import parking
from airflow_horsies.wire.known import writing
from airflow_horsies.wire.reading import read_states
from airflow_horsies.wire.statements import Wire

__all__ = [
    "DEFAULT_SENDER",
    "Parking",
    "has_ended",
    "read_parkings",
    "require_one",
    "require_target",
    "send_signal",
    "send_signal_to_task_instance",
]

# An attempt that has looked for the signal parks within milliseconds. Its worker looks again when it is parked; here
# only in case that the worker dies in between.
SETTLE_SECONDS = 2.0
SETTLE_PAUSE_SECONDS = 0.1
DEFAULT_SENDER = "a client"
ENDED_WORKFLOW = frozenset({"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"})


def send_signal(
    scope: Scope,
    target: str,
    name: str,
    payload: Any = None,
    *,
    dedup_key: str | None = None,
    sent_by: str = DEFAULT_SENDER,
) -> Call[SentSignal]:
    """Store a signal for a task or a workflow, and make the tasks due that wait for it.

    :param dedup_key: a signal with the same key, target and name is stored once.
    :param sent_by: who sends it, for people.
    """
    target = require_target(target)
    name = require_signal_name(name)
    text = encode_payload(payload)
    if dedup_key is not None:
        require_text("dedup_key", dedup_key, max_chars=MAX_DEDUP_CHARS)
    require_text("sent_by", sent_by, max_chars=MAX_SENDER_CHARS)
    yield from migrate_ledger(scope)
    message_id = str(uuid.uuid4())
    store = partial(
        _store,
        target=target,
        name=name,
        payload=text,
        dedup_key=dedup_key,
        sent_by=sent_by,
        message_id=message_id,
    )
    stored_id, resumed, waits = yield Transaction(writing(store))
    gives_up_at = time.monotonic() + SETTLE_SECONDS
    while waits and time.monotonic() < gives_up_at:
        yield Pause(SETTLE_PAUSE_SECONDS)
        more, waits = yield Transaction(writing(partial(_resume, target=target, name=name)))
        resumed += more
    return SentSignal(id=stored_id, target=target, name=name, is_new=stored_id == message_id, resumed=resumed)


def send_signal_to_task_instance(
    scope: Scope,
    task_instance: TaskInstanceKey,
    name: str,
    payload: Any = None,
    *,
    dedup_key: str | None = None,
    sent_by: str = DEFAULT_SENDER,
) -> Call[SentSignal]:
    """As :func:`send_signal`, to what the task instance submitted last."""
    found: Sequence[str] = yield from read_latest_task_ids(scope, task_instance)
    target = require_one(found, task_instance)
    return (yield from send_signal(scope, target, name, payload, dedup_key=dedup_key, sent_by=sent_by))


def read_parkings(task_ids: Sequence[str]) -> Call[dict[str, list[Parking]]]:
    """The waits of tasks, by task; none with older tables."""

    def read() -> Script[dict[str, list[Parking]]]:
        if (yield from read_version()) < messages.SINCE:
            return {}
        return (yield from messages.read_parkings(task_ids))

    found: dict[str, list[Parking]] = yield PlainTransaction(read)
    return found


def require_one(found: Sequence[str], task_instance: TaskInstanceKey) -> str:
    """The only task that a task instance has submitted."""
    if not found:
        raise TaskNotFound(
            f"{task_instance} has submitted nothing that a signal can be sent to. Check the DAG, the run, the task and "
            "the namespace of the connection.",
            task_id="",
        )
    if len(found) > 1:
        raise InvalidTask(
            "task_instance",
            f"{task_instance} has submitted {len(found)} tasks. Send the signal to the id of one of them",
        )
    return found[0]


def require_target(target: str) -> str:
    """The canonical id of a task or of a workflow."""
    try:
        return require_task_id(target)
    except InvalidTask:
        raise InvalidTask("target", f"must be the id of a task or of a workflow, not {target!r}") from None


def _store(
    wire: Wire,
    *,
    target: str,
    name: str,
    payload: str,
    dedup_key: str | None,
    sent_by: str,
    message_id: str,
) -> Script[tuple[str, int, bool]]:
    yield from messages.lock_signal([target], name)
    known = None if dedup_key is None else (yield from messages.find_message(target, name, dedup_key))
    if known is None:
        # Only now: a signal that was sent before is no error, even if its target has ended.
        yield from _require_live(wire, target)
        yield from messages.record_message(
            target, name, payload, dedup_key=dedup_key, sent_by=sent_by, message_id=message_id
        )
    resumed, waits = yield from _resume_waiting(target, name)
    return known or message_id, resumed, waits


def _resume(wire: Wire, *, target: str, name: str) -> Script[tuple[int, bool]]:
    yield from messages.lock_signal([target], name)
    if not (yield from messages.has_message([target], name)):
        return 0, False
    return (yield from _resume_waiting(target, name))


def _resume_waiting(target: str, name: str) -> Script[tuple[int, bool]]:
    """Make the tasks due that wait; returns their number, and whether another is about to park."""
    resumed, waits = 0, False
    for task_id, attempt in (yield from messages.find_parkings(target, name)):
        if (yield from parking.resume_parked(task_id, attempt)):
            resumed += 1
        elif not waits:
            waits = yield from parking.is_parking(task_id, attempt)
    return resumed, waits


def _require_live(wire: Wire, target: str) -> Script[None]:
    state = (yield from read_states(wire, [target])).get(target)
    if state is None:
        workflow = yield from parking.find_workflow(target)
        if workflow is None:
            raise TaskNotFound(
                f"Neither a task nor a workflow with the id {target} is in this database: it never existed, or it has "
                "finished and is past its retention. Check the id and the database of the connection.",
                task_id=target,
            )
        if workflow["status"] in ENDED_WORKFLOW:
            raise has_ended(f"Workflow {target} ({workflow['name']})", workflow["status"], target)
    elif state.is_terminal:
        raise has_ended(f"Task {target}", state, target)


def has_ended(what: str, state: TaskState | str, target: str) -> SignalRefused:
    """The error for a target that has ended."""
    return SignalRefused(
        f"{what} is {state}, and can receive no signal any more. Send it to one that has not ended.", task_id=target
    )
