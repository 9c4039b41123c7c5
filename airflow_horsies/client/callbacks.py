"""Calls on callbacks, written once and driven by both clients, and the synchronous wait for one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from airflow_horsies.client.batches import STARTING_SECONDS, _wait_for_workers
from airflow_horsies.client.calls import Scope, canonical_ids, encode_tasks
from airflow_horsies.client.calls import migrate_ledger as migrate
from airflow_horsies.client.client import Client
from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.steps import Call, PlainTransaction, Transaction
from airflow_horsies.client.waiting import (
    FIRST_RETRY_SECONDS,
    FOLLOW_SECONDS,
    MAX_RETRY_SECONDS,
    POLL_SECONDS,
)
from airflow_horsies.core.callback import (
    Callback,
    CallbackState,
    CallbackTerms,
    SubmittedCallback,
    digest_answer,
    digest_token,
    require_placeholder,
)
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.db.listener import CALLBACK_DONE, TASK_DONE, Listener
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HistoryPartitionMissing, InvalidTask
from airflow_horsies.ledger import callbacks
from airflow_horsies.ledger.callbacks import Told, Verdict
from airflow_horsies.ledger.chunks import WorkersStarting
from airflow_horsies.ledger.identity import Submitter, UnknownRunKey
from airflow_horsies.ledger.schema import read_since
from airflow_horsies.wire.known import writing
from airflow_horsies.wire.reading import read_states

log = logging.getLogger(__name__)

__all__ = [
    "Told",
    "Verdict",
    "answer_callback",
    "extend_callback",
    "release_callback",
    "settle_callback",
    "submit_callback",
    "wait_for_callback",
]


def submit_callback(
    scope: Scope, spec: TaskSpec, terms: CallbackTerms, task_instance: TaskInstanceKey, tried: AirflowTry
) -> Call[SubmittedCallback]:
    """Open a callback, or go on with the open one, and send the task that hands out its address."""
    require_placeholder(spec.kwargs)
    if spec.idempotency_key is not None:
        raise InvalidTask(
            "idempotency_key", "is not possible with a callback, which belongs to one task instance. Leave it out"
        )
    settings = scope.settings
    settings.require_deployment()
    (encoded,) = yield from encode_tasks(scope, [spec], numbered=True)
    yield from migrate(scope)
    gives_up_at = time.monotonic() + STARTING_SECONDS
    can_cancel = True
    while True:
        submitter = Submitter(
            namespace=settings.namespace, base_url=settings.base_url, task_instance=task_instance, tried=tried
        )
        submit = partial(
            callbacks.submit_callback, submitter=submitter, task=encoded, terms=terms, can_cancel=can_cancel
        )
        try:
            submitted: SubmittedCallback = yield Transaction(writing(submit))
            return submitted
        except UnknownRunKey as unknown:
            tried = tried.ask_about(unknown.key)
        except HistoryPartitionMissing:
            if not can_cancel:
                raise
            can_cancel = False
        except WorkersStarting as starting:
            yield from _wait_for_workers(starting, gives_up_at)


def settle_callback(callback_id: str) -> Call[Callback | None]:
    """The callback with its answer; it expires now if its time is over."""
    found: Callback | None = yield PlainTransaction(lambda: callbacks.settle_callback(callback_id))
    return found


def release_callback(
    scope: Scope,
    task_ids: Iterable[str],
    task_instance: TaskInstanceKey,
    *,
    callback_id: str,
    try_number: int | None = None,
    life: int | None = None,
) -> Call[dict[str, CancelOutcome]]:
    """Void the callback, and cancel the task that hands out its address."""
    wanted = canonical_ids(task_ids)
    release = partial(
        callbacks.release_callback,
        namespace=scope.settings.namespace,
        task_instance=task_instance,
        task_ids=wanted,
        callback_id=callback_id,
        try_number=try_number,
        life=life,
    )
    try:
        outcomes: dict[str, CancelOutcome] = yield Transaction(writing(release))
    except HistoryPartitionMissing:
        outcomes = yield Transaction(writing(partial(release, later=True)))
    return outcomes


# -- the outside party ---------------------------------------------------------------------------------------------


def answer_callback(
    client: PageClient, token: str, state: CallbackState, body: str, *, answered_from: str | None
) -> Told:
    """Store the answer of an outside party, if it is the first one.

    :param body: JSON, already validated.
    """
    answer = callbacks.Answer(state=state, body=body, body_digest=digest_answer(body), answered_from=answered_from)
    return _run(client, lambda: callbacks.answer_callback(digest_token(token), answer))


def extend_callback(client: PageClient, token: str) -> Told:
    return _run(client, lambda: callbacks.extend_callback(digest_token(token)))


def _run(client: PageClient, make_script: Callable[[], Script[Told]]) -> Told:
    return client.run(lambda: read_since(callbacks.SINCE, make_script(), Told(verdict=Verdict.UNKNOWN)))


SHORTEST_PAUSE_SECONDS = 0.05


# -- the synchronous wait ------------------------------------------------------------------------------------------


def wait_for_callback(
    client: Client,
    callback_id: str,
    task_id: str,
    *,
    seconds: float | None,
    meanwhile: Callable[[], None] | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> bool:
    """Wait until the callback is over or the task has not completed; False if the time is over before."""
    ends_at = None if seconds is None else time.monotonic() + seconds
    backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
    while True:
        try:
            with ExitStack() as opened:
                # Listen first and read second, so that nothing in between is missed.
                database = client.settings.database
                listener = (
                    opened.enter_context(Listener(database, TASK_DONE, CALLBACK_DONE))
                    if client.settings.listens
                    else None
                )
                while True:
                    callback = client.drive(settle_callback(callback_id))
                    backoff.reset()
                    is_open = callback is not None and callback.state is CallbackState.OPEN
                    if callback is None or not is_open or has_failed(client, task_id):
                        return True
                    # Its time may have passed just now, and is read again.
                    left = min(max(callback.seconds_left, SHORTEST_PAUSE_SECONDS), poll_seconds)
                    if ends_at is not None:
                        left = min(left, ends_at - time.monotonic())
                        if left <= 0:
                            return False
                    _rest(listener, {callback_id, task_id}, left, meanwhile)
        except TRANSIENT_ERRORS as error:
            pause = backoff.next_pause()
            if ends_at is not None and time.monotonic() + pause > ends_at:
                raise
            log.warning("Cannot read the callback. Trying again in %.1f s: %s", pause, error)
            time.sleep(pause)


def has_failed(client: Client, task_id: str) -> bool:
    """Whether the task ended without completing. One past its retention has ended, and its callback decides."""
    state = client.read(lambda wire: read_states(wire, [task_id])).get(task_id)
    return state is not None and state.is_terminal and state is not TaskState.COMPLETED


def _rest(listener: Listener | None, wanted: set[str], seconds: float, meanwhile: Callable[[], None] | None) -> None:
    """Return at a notification, or after the time; ``meanwhile`` is called every other second."""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        pause = left if meanwhile is None else min(left, FOLLOW_SECONDS)
        if listener is None:
            time.sleep(pause)
        elif listener.wait(pause) & wanted:
            return
        if meanwhile is not None:
            meanwhile()
