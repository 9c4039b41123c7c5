"""Callbacks: opened with the submission of the task that hands out their address, and answered once.

Each attempt of that task mints a token of its own and stores its digest. All tokens of a callback are valid until it
has an outcome, because an earlier attempt may have handed out its address before it failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import assert_never

from airflow_horsies.core.callback import (
    CALLBACKS,
    MAX_TOKENS,
    Callback,
    CallbackState,
    CallbackTerms,
    SubmittedCallback,
)
from airflow_horsies.core.callback import name_callback as name_in_text
from airflow_horsies.core.cluster import WorkerState
from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome
from airflow_horsies.db.statement import Row, Script, Statement, sql_text
from airflow_horsies.exceptions import CallbacksUnsupported, LedgerOutdated
from airflow_horsies.ledger.cancelling import _has_later_try, lock_task_instance, release_tasks
from airflow_horsies.ledger.chunks import require_workers_with
from airflow_horsies.ledger.identity import Submitter, continues_life
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.ledger.submitting import submit_tasks
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.statements import Wire

# The first version of the ledger with callbacks.
SINCE = 10
KEPT_FOR = timedelta(days=30)
PRUNED_AT_ONCE = 500


class Verdict(Enum):
    """What became of an answer or a heartbeat."""

    ACCEPTED = auto()
    # The same answer again.
    REPEATED = auto()
    # Another answer came first.
    REFUSED = auto()
    # It has expired, or nobody waits for it any more.
    OVER = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an outside party sent.

    :param body: its JSON as it came.
    :param body_digest: of its value, however it is written.
    """

    state: CallbackState
    body: str
    body_digest: bytes
    answered_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The verdict, and until when a heartbeat has extended the wait."""

    verdict: Verdict
    expires_at: datetime | None = None


# -- the side that waits -------------------------------------------------------------------------------------------


def submit_callback(
    wire: Wire, submitter: Submitter, task: EncodedTask, terms: CallbackTerms, *, can_cancel: bool = True
) -> Script[SubmittedCallback]:
    """Open a callback, or go on with the open one of this life, and send the task that hands out its address.

    The arguments contain the id of the callback, so that the task counts as the same work as long as the callback is
    the same. After one that failed or expired, the task is sent again with another one.
    """
    yield from lock_task_instance(submitter.namespace, submitter.task_instance)
    newest = yield Statement(sql_text(PACKAGE, "read_newest_life"), submitter.key)
    continues = continues_life(submitter, newest)
    life = max((row["life"] for row in newest), default=0) + (0 if continues else 1)
    last = (yield from _find_last(submitter, life)) if continues else None
    latest = last if last is not None and _is_usable(submitter, last) else None
    if latest is not None and latest.state is CallbackState.COMPLETED:
        return SubmittedCallback(callback=latest, sent=None, life=life)
    number = max(submitter.tried.try_number, 0 if last is None else last.number + 1)
    callback_id = submitter.derive_callback_id(life, number) if latest is None else latest.id
    yield from require_workers_with(wire, task.queue_name, CALLBACKS, unsupported=_unsupported, since=SINCE)
    (sent,) = yield from submit_tasks(wire, submitter, [_with_callback(task, callback_id)], can_cancel=can_cancel)
    yield _void(submitter.namespace, submitter.task_instance, but=callback_id)
    sender = {"id": callback_id, "horsies_task_id": sent.task_id}
    if latest is not None:
        yield Statement(sql_text(PACKAGE, "change_callback_task"), sender)
        return SubmittedCallback(callback=latest, sent=sent, life=life)
    (row,) = yield Statement(
        sql_text(PACKAGE, "record_callback"),
        {
            **submitter.key,
            **sender,
            "life": life,
            "number": number,
            "base_url": submitter.base_url,
            "expires_after_seconds": terms.expires_after.total_seconds(),
            "max_duration_seconds": terms.longest.total_seconds(),
        },
    )
    return SubmittedCallback(callback=_decode(row), sent=sent, life=life)


def _find_last(submitter: Submitter, life: int) -> Script[Callback | None]:
    """The newest callback of the life."""
    rows = yield Statement(sql_text(PACKAGE, "read_latest_callback"), {**submitter.key, "life": life})
    if not rows:
        return None
    last = _decode(rows[0])
    if last.state is CallbackState.OPEN and last.seconds_left <= 0:
        yield Statement(sql_text(PACKAGE, "expire_callback"), {"id": last.id})
        return replace(last, state=CallbackState.EXPIRED)
    return last


def _is_usable(submitter: Submitter, last: Callback) -> bool:
    """Whether no other callback must follow."""
    match last.state:
        case CallbackState.OPEN | CallbackState.COMPLETED:
            return True
        case CallbackState.FAILED | CallbackState.EXPIRED:
            # Of this try: only a retry asks again.
            return last.number == submitter.tried.try_number
        case CallbackState.VOID:
            return False
        case _:
            assert_never(last.state)


def _with_callback(task: EncodedTask, callback_id: str) -> EncodedTask:
    arguments = name_in_text(task.arguments.decode(), callback_id).encode()
    return task._replace(kwargs=name_in_text(task.kwargs or "{}", callback_id), arguments=arguments)


def read_callbacks(ids: Collection[str], *, whole: bool = False) -> Script[dict[str, Callback]]:
    """:param whole: with the body of the answer."""
    rows = yield Statement(sql_text(PACKAGE, "read_callbacks"), {"ids": sorted(ids), "whole": whole})
    return {row["id"]: _decode(row) for row in rows}


def settle_callback(callback_id: str) -> Script[Callback | None]:
    """The callback with its answer; it expires now if its time is over. None if it is not there."""
    yield Statement(sql_text(PACKAGE, "expire_callback"), {"id": callback_id})
    return (yield from read_callbacks([callback_id], whole=True)).get(callback_id)


def release_callback(
    wire: Wire,
    namespace: str,
    task_instance: TaskInstanceKey,
    task_ids: Collection[str],
    *,
    callback_id: str,
    try_number: int | None = None,
    life: int | None = None,
    later: bool = False,
) -> Script[dict[str, CancelOutcome]]:
    """Release the task that hands out the address, and void the callback. Nothing happens if a later try or life needs
    them."""
    yield from lock_task_instance(namespace, task_instance)
    if (try_number, life) != (None, None) and (
        yield from _has_later_try(namespace, task_instance, task_ids, try_number, life)
    ):
        return dict.fromkeys(task_ids, CancelOutcome.STILL_WANTED)
    outcomes = yield from release_tasks(wire, namespace, task_instance, task_ids, later=later)
    yield _void(namespace, task_instance, only=callback_id)
    return outcomes


def _unsupported(worker: WorkerState, queue: str, count: int, live: int) -> CallbacksUnsupported:
    return CallbacksUnsupported(
        f"{count} of {live} live workers of queue {queue!r} cannot fill in the address of a callback; the first is "
        f"process {worker.pid} on {worker.hostname}. Nothing was sent. Start the workers of the queue with a release "
        "of airflow_horsies.worker that has callbacks. A stopped worker counts as live for up to two minutes."
    )


def _void(
    namespace: str, task_instance: TaskInstanceKey, *, only: str | None = None, but: str | None = None
) -> Statement:
    return Statement(
        sql_text(PACKAGE, "void_callbacks"), {**key_of(namespace, task_instance), "only": only, "but": but}
    )


# -- the task that hands out the address ---------------------------------------------------------------------------


def mint_token(callback_id: str, horsies_task_id: str, digest: bytes) -> Script[str | None]:
    """Store the digest of a token of a task; returns the address of the Airflow that waits, None if none waits."""
    if (yield from read_version()) < SINCE:
        raise LedgerOutdated("The airflow_horsies tables are too old for callbacks. Run 'airflow horsies db migrate'.")
    rows = yield Statement(
        sql_text(PACKAGE, "mint_callback_token"),
        {"callback_id": callback_id, "horsies_task_id": horsies_task_id, "digest": digest, "kept": MAX_TOKENS - 1},
    )
    return str(rows[0]["base_url"]) if rows else None


# -- the outside party ---------------------------------------------------------------------------------------------


def answer_callback(digest: bytes, answer: Answer) -> Script[Told]:
    """Store the answer, if it is the first one."""
    rows = yield Statement(sql_text(PACKAGE, "lock_callback_of_token"), {"digest": digest})
    if not rows:
        return Told(verdict=Verdict.UNKNOWN)
    (row,) = rows
    if row["outcome"] is not None or not row["is_in_time"]:
        is_same = row["outcome"] == answer.state and bytes(row["body_digest"] or b"") == answer.body_digest
        return Told(verdict=Verdict.REPEATED if is_same else _verdict_of_closed(row))
    yield Statement(
        sql_text(PACKAGE, "answer_callback"),
        {
            "id": row["id"],
            "outcome": answer.state.value,
            "body": answer.body,
            "body_digest": answer.body_digest,
            "answered_from": answer.answered_from,
        },
    )
    return Told(verdict=Verdict.ACCEPTED)


def extend_callback(digest: bytes) -> Script[Told]:
    """A heartbeat."""
    rows = yield Statement(sql_text(PACKAGE, "lock_callback_of_token"), {"digest": digest})
    if not rows:
        return Told(verdict=Verdict.UNKNOWN)
    (row,) = rows
    if row["outcome"] is not None or not row["is_in_time"]:
        return Told(verdict=_verdict_of_closed(row))
    (extended,) = yield Statement(sql_text(PACKAGE, "extend_callback"), {"id": row["id"]})
    return Told(verdict=Verdict.ACCEPTED, expires_at=extended["expires_at"].astimezone(UTC))


def _verdict_of_closed(row: Row) -> Verdict:
    return Verdict.REFUSED if row["outcome"] in ("COMPLETED", "FAILED") else Verdict.OVER


def prune_callbacks() -> Statement:
    """Remove a page of callbacks that ended or expired long ago."""
    params = {"older_than_seconds": KEPT_FOR.total_seconds(), "limit": PRUNED_AT_ONCE}
    return Statement(sql_text(PACKAGE, "prune_callbacks"), params)


def _decode(row: Row) -> Callback:
    return Callback(
        id=row["id"],
        state=CallbackState.OPEN if row["outcome"] is None else CallbackState(row["outcome"]),
        seconds_left=row["seconds_left"],
        number=row["number"],
        expires_at=row["expires_at"].astimezone(UTC),
        heartbeats=row["heartbeats"],
        body=row["body"],
    )
