"""Calls that ask what workers know: to list it, and before something is sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterable
from functools import partial

from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Transaction
from airflow_horsies.core.catalog import KnownKind, KnownTask, Request
from airflow_horsies.db.connection import Database
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied, InvalidTask
from airflow_horsies.ledger import catalog
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.catalog import Doubt, Gate, Memory, Verdict
from airflow_horsies.wire.encoding import EncodedTask

log = logging.getLogger(__name__)

# A worker that ended counts as live for up to twenty seconds. One that lives reports every five by default.
CONFIRM_SECONDS = 15.0
CONFIRM_PAUSE_SECONDS = 0.5

_memories: dict[Hashable, Memory] = {}
# What was logged already, so that each is logged once.
_noted: set[str] = set()


def memory_of(database: Database) -> Memory:
    """What this process has read lately of a database."""
    if len(_memories) > 100:
        _memories.clear()
    return _memories.setdefault(database.key, Memory())


def read_catalog(
    *, kind: str | None = None, name: str | None = None, queue: str | None = None
) -> Call[list[KnownTask]]:
    """The tasks and workflows that workers have recorded; none in tables of an older release."""
    try:
        wanted = None if kind is None else KnownKind(kind)
    except ValueError:
        raise InvalidTask("kind", f"must be 'task' or 'workflow', not {kind!r}") from None
    read = partial(catalog.read_catalog, kind=wanted, name=name, queue=queue)
    nothing: list[KnownTask] = []
    found: list[KnownTask] = yield PlainTransaction(lambda: ledger_schema.read_since(catalog.SINCE, read(), nothing))
    return found


def look_before(database: Database, tasks: Iterable[EncodedTask]) -> Call[None]:
    """Refuse tasks that no live worker would accept, where the transaction that sends them cannot look itself.

    The tables may be missing, or too old.
    """
    # One with an id or a key of its own may have been sent before.
    new = [task for task in tasks if not task.id_is_given and task.idempotency_digest is None]
    if not new:
        return
    gate = Gate(memory_of(database))
    pairs = {(task.queue_name, task.task_name) for task in new}

    def look() -> Script[None]:
        if (yield from ledger_schema.read_version()) >= catalog.SINCE:
            yield from gate.look(pairs)
        gate.require(new)

    try:
        if gate.has_read(pairs):
            gate.require(new)
        else:
            yield PlainTransaction(look)
    except Doubt as doubt:
        yield from confirm(doubt, memory_of(database))
    except AccessDenied as error:
        gate.give_up()
        note_denied(error)


def confirm(doubt: Doubt, memory: Memory) -> Call[None]:
    """Raise the refusal if it is certain: each live worker of the queue refuses, and one of them still lives."""
    request = doubt.request
    gives_up_at = time.monotonic() + CONFIRM_SECONDS
    first: Verdict | None = None
    while True:
        verdict: Verdict = yield Transaction(partial(catalog.judge, request=request))
        if verdict.refusal is None:
            memory.trust((request.kind, request.queue, request.name))
            if verdict.silent is not None:
                note_doubt(request, f"a worker has not told: {verdict.silent}")
            return
        first = first or verdict
        if any(seen_at > first.seen.get(worker, seen_at) for worker, seen_at in verdict.seen.items()):
            raise verdict.refusal
        if time.monotonic() > gives_up_at:
            memory.trust((request.kind, request.queue, request.name))
            note_doubt(request, "they report no more and may have ended")
            return
        yield Pause(CONFIRM_PAUSE_SECONDS)


def note_doubt(request: Request, reason: str) -> None:
    _log_once(
        f"The workers of queue {request.queue!r} that have told what they know would refuse {request.kind} "
        f"{request.name!r}. It is sent, because {reason}."
    )


def note_denied(error: AccessDenied) -> None:
    _log_once(f"Tasks are sent unchecked, because this user may not read what workers know: {error}")


def _log_once(message: str) -> None:
    if message not in _noted:
        if len(_noted) > 1_000:
            _noted.clear()
        _noted.add(message)
        log.warning("%s", message)
