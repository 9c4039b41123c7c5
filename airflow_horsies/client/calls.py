"""Calls of several transactions, written once and driven by both Client and AsyncClient.

A call is a generator. It yields transactions and pauses, receives the result of each transaction, or its error, and
returns its own result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from airflow_horsies.client.accepting import confirm, look_before, memory_of, note_denied
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import Call, Pause, PlainTransaction, Transaction
from airflow_horsies.core.cluster import RetentionClass
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, SentIds, Submission, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.db.backoff import Backoff
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied, DatabaseBusy, HistoryPartitionMissing, InvalidTask
from airflow_horsies.ledger import cancelling, latest, submissions, submitting
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.catalog import Doubt, Gate
from airflow_horsies.ledger.identity import Submitter, UnknownRunKey
from airflow_horsies.ledger.schema import Migration
from airflow_horsies.wire import bulk, cluster, sending
from airflow_horsies.wire.encoding import EncodedTask, encode_task, keep_for
from airflow_horsies.wire.known import writing
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 15.0
# A migration sets its own limits. The server does not answer while it rewrites a large table.
MIGRATION_LIMITS = Limits(answer_seconds=1_800)


@dataclass(slots=True)
class Scope:
    """The settings of a client, and what it has learned.

    :param migrate_seconds: how long to retry a migration of our tables while others use them.
    """

    settings: ClientSettings
    migrate_seconds: float = 0.0
    ledger_is_current: bool = False
    retention_classes: list[RetentionClass] | None = None

    def stay_in(self, namespace: str | None) -> None:
        """Keep work under way in the namespace it was submitted in, even if the connection has changed."""
        if namespace and namespace != self.settings.namespace:
            self.settings = replace(self.settings, given_namespace=namespace, is_under_way=True)


class MigrationNeeded(Exception):
    """The tables must be migrated, in a transaction of their own, before they can be read."""


# -- sending -------------------------------------------------------------------------------------------------------


def enqueue_task(scope: Scope, spec: TaskSpec) -> Call[str]:
    (encoded,) = yield from encode_tasks(scope, [spec])
    yield from look_before(scope.settings.database, [encoded])
    runs = count()

    def send(wire: Wire) -> Script[str]:
        return (yield from sending.enqueue_task(wire, encoded, is_rerun=next(runs) > 0))

    task_id: str = yield Transaction(writing(send))
    return task_id


def enqueue_tasks(scope: Scope, specs: Sequence[TaskSpec]) -> Call[list[str]]:
    encoded = yield from encode_tasks(scope, specs, numbered=True)
    yield from look_before(scope.settings.database, encoded)
    runs = count()

    def send(wire: Wire) -> Script[list[str]]:
        return (yield from sending.enqueue_tasks(wire, encoded, is_rerun=next(runs) > 0))

    task_ids: list[str] = yield Transaction(writing(send), pipelined=not sending.are_many(encoded))
    return task_ids


def submit_tasks(
    scope: Scope, specs: Sequence[TaskSpec], task_instance: TaskInstanceKey, tried: AirflowTry
) -> Call[list[SubmitResult]]:
    encoded = yield from encode_tasks(scope, specs, numbered=True)

    def submit(wire: Wire, submitter: Submitter, *, can_cancel: bool, gate: Gate | None) -> Script[list[SubmitResult]]:
        return (yield from submitting.submit_tasks(wire, submitter, encoded, can_cancel=can_cancel, gate=gate))

    pipelined = not sending.are_many(encoded)
    return (yield from submit_works(scope, submit, task_instance, tried, pipelined=pipelined))


class SubmitScript(Protocol[T_co]):
    """What a submission runs.

    :param can_cancel: False if horsies cannot record a cancelled task now.
    :param gate: refuses what no worker would accept.
    """

    def __call__(self, wire: Wire, submitter: Submitter, *, can_cancel: bool, gate: Gate | None) -> Script[T_co]: ...


def submit_works(
    scope: Scope,
    submit: SubmitScript[T],
    task_instance: TaskInstanceKey,
    tried: AirflowTry,
    *,
    pipelined: bool = True,
) -> Call[T]:
    """Submit what a task instance asks for, in one transaction."""
    settings = scope.settings
    settings.require_deployment()
    yield from migrate_ledger(scope)
    can_cancel = True
    gate: Gate | None = Gate(memory_of(settings.database))
    while True:
        submitter = Submitter(
            namespace=settings.namespace, base_url=settings.base_url, task_instance=task_instance, tried=tried
        )
        script = partial(submit, submitter=submitter, can_cancel=can_cancel, gate=gate)
        try:
            submitted: T = yield Transaction(writing(script), pipelined=pipelined)
            return submitted
        except UnknownRunKey as unknown:
            tried = tried.ask_about(unknown.key)
        except HistoryPartitionMissing:
            if not can_cancel:
                raise
            # Unwanted tasks are cancelled as soon as horsies can record it.
            can_cancel = False
        except (Doubt, AccessDenied) as error:
            yield from open_gate(scope, gate, error)
            gate = None


def open_gate(scope: Scope, gate: Gate | None, error: Doubt | AccessDenied) -> Call[None]:
    """Submit again without a look at what workers know; the error itself, or that of a refusal, if that is no use."""
    if isinstance(error, Doubt):
        yield from confirm(error, memory_of(scope.settings.database))
    elif gate is None or "catalog" not in str(error):
        raise error
    else:
        note_denied(error)


def encode_tasks(scope: Scope, specs: Sequence[TaskSpec], *, numbered: bool = False) -> Call[list[EncodedTask]]:
    """Validate and encode, so that an invalid task is found before a connection is opened."""
    sent_at, max_payload_bytes = datetime.now(UTC), scope.settings.max_payload_bytes
    if numbered:
        encoded = bulk.encode_tasks(specs, max_payload_bytes=max_payload_bytes, sent_at=sent_at)
    else:
        encoded = [encode_task(spec, max_payload_bytes=max_payload_bytes, sent_at=sent_at) for spec in specs]
    classes: dict[str, str] = {}
    for queue in {spec.queue for spec in specs if not spec.retention}:
        key = yield from find_class(scope, queue)
        if key is not None:
            classes[queue] = key
    if not classes:
        return encoded
    kept = keep_for(encoded, classes)
    return [old if spec.retention else new for spec, old, new in zip(specs, encoded, kept, strict=True)]


def find_class(scope: Scope, queue: str) -> Call[str | None]:
    """The retention class that the workers assign to the queue, if there is one."""
    if scope.retention_classes is None:
        scope.retention_classes = yield Transaction(cluster.read_retention_classes)
    return sending.class_of_queue(scope.retention_classes or (), queue)


# -- what was submitted


def read_submissions(scope: Scope, task_instance: TaskInstanceKey) -> Call[list[Submission]]:
    """All submissions of a task instance, oldest first."""
    settings = scope.settings
    base_url = "" if settings.is_under_way else settings.base_url
    read = partial(submissions.read_submissions, settings.namespace, base_url, task_instance)
    nothing: list[Submission] = []
    return (yield from read_current(scope, read, otherwise=nothing))


def read_latest_task_ids(scope: Scope, task_instance: TaskInstanceKey) -> Call[list[str]]:
    """The tasks of the last submission of a task instance, in the order of its items."""
    settings = scope.settings
    own = latest.Deployment(settings.namespace, "" if settings.is_under_way else settings.base_url)
    read = partial(latest.read_latest_ids, own, task_instance)
    found = yield from read_current(scope, read, otherwise=latest.LatestIds(0, "{}"))
    return found.task_ids


def read_ids_of_try(scope: Scope, task_instance: TaskInstanceKey, *, try_number: int) -> Call[SentIds]:
    """What a try has submitted and no later one has replaced; it may be very much."""
    settings = scope.settings
    own = latest.Deployment(settings.namespace, "" if settings.is_under_way else settings.base_url)
    read = partial(latest.read_ids_of_try, own, task_instance, try_number)
    return (yield from read_current(scope, read, otherwise=SentIds(None, [])))


def has_later_submission(scope: Scope, task_instance: TaskInstanceKey, *, life: int, try_number: int) -> Call[bool]:
    """Whether a later life, or a later try of this life, has submitted."""
    namespace = scope.settings.namespace
    read = partial(submissions.has_later_submission, namespace, task_instance, life=life, try_number=try_number)
    return (yield from read_current(scope, read, otherwise=False))


def read_current(scope: Scope, make_script: Callable[[], Script[T]], *, otherwise: T) -> Call[T]:
    """Read the newest ledger; an older one is migrated first, because its content is needed too."""

    def read() -> Script[T]:
        version = yield from ledger_schema.read_version()
        if not version:
            return otherwise
        if version < submissions.SINCE:
            raise MigrationNeeded
        return (yield from make_script())

    try:
        found: T = yield PlainTransaction(read)
    except MigrationNeeded:
        yield from migrate_ledger(scope, for_reading=True)
        found = yield PlainTransaction(read)
    return found


# -- cancelling ----------------------------------------------------------------------------------------------------


def cancel_tasks(task_ids: Iterable[str]) -> Call[dict[str, CancelOutcome]]:
    """Cancel tasks a page at a time; missing tasks are omitted."""
    outcomes: dict[str, CancelOutcome] = {}
    for page in cancelling.pages(canonical_ids(task_ids)):
        outcomes |= yield Transaction(writing(partial(cancelling.cancel_tasks_in_any_ledger, task_ids=page)))
    return outcomes


def release_tasks(
    scope: Scope,
    task_ids: Iterable[str],
    task_instance: TaskInstanceKey,
    *,
    try_number: int | None = None,
    life: int | None = None,
) -> Call[dict[str, CancelOutcome]]:
    """Cancel tasks that no one else needs, now or as soon as horsies can record it."""
    wanted = canonical_ids(task_ids)
    request = request_release(scope, wanted, task_instance, try_number=try_number, life=life)
    if len(wanted) > cancelling.CANCELS_AT_ONCE:
        # First record all requests, then carry them out by pages: after an interruption, another process continues.
        return (yield from carry_out_releases((yield from request)))
    release = _release(scope, wanted, task_instance, try_number=try_number, life=life)
    try:
        outcomes: dict[str, CancelOutcome] = yield Transaction(writing(release))
    except HistoryPartitionMissing:
        return (yield from request)
    return outcomes


def request_release(
    scope: Scope,
    task_ids: Collection[str],
    task_instance: TaskInstanceKey,
    *,
    try_number: int | None = None,
    life: int | None = None,
) -> Call[dict[str, CancelOutcome]]:
    """Only record the request to cancel tasks that no one else needs."""
    release = _release(scope, task_ids, task_instance, try_number=try_number, life=life)
    outcomes: dict[str, CancelOutcome] = yield Transaction(writing(partial(release, later=True)))
    return outcomes


def carry_out_releases(outcomes: dict[str, CancelOutcome]) -> Call[dict[str, CancelOutcome]]:
    """Carry out recorded requests a page at a time, as far as horsies can record it.

    :param outcomes: of the requests.
    """
    with suppress(HistoryPartitionMissing):
        for page in cancelling.pages(outcomes):
            outcomes |= yield Transaction(writing(partial(cancelling.carry_out_requests, ids=page)))
    return outcomes


def _release(
    scope: Scope,
    task_ids: Collection[str],
    task_instance: TaskInstanceKey,
    *,
    try_number: int | None,
    life: int | None,
) -> partial[Script[dict[str, CancelOutcome]]]:
    return partial(
        cancelling.release_tasks,
        namespace=scope.settings.namespace,
        task_instance=task_instance,
        task_ids=task_ids,
        try_number=try_number,
        life=life,
    )


# -- our own tables ------------------------------------------------------------------------------------------------


def migrate_ledger(scope: Scope, *, by_hand: bool = False, for_reading: bool = False) -> Call[list[Migration]]:
    """Create or migrate the airflow_horsies tables; returns the applied migrations.

    :param by_hand: also if the settings forbid automatic migrations.
    :param for_reading: also if horsies' own tables are newer than those that this release writes.
    """
    if scope.ledger_is_current:
        return []
    # Create nothing in a database without horsies.
    yield Transaction(_do_nothing if for_reading else writing(_do_nothing))
    migrates = by_hand or scope.settings.migrates
    try:
        applied = yield from _migrate_with_retries(
            ledger_schema.migrate if migrates else ledger_schema.require_migrated, seconds=scope.migrate_seconds
        )
    except AccessDenied as error:
        raise AccessDenied(f"{error}\n{_grants(scope.settings)}") from error
    scope.ledger_is_current = True
    for migration in applied:
        log.info("Migrated the airflow_horsies tables to version %s (%s).", migration.version, migration.name)
    return applied


def _migrate_with_retries(
    make_script: Callable[[], Script[list[Migration]]], *, seconds: float
) -> Call[list[Migration]]:
    """Retry while other sessions lock the tables for long, as pg_dump does."""
    backoff = Backoff(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
    gives_up_at = time.monotonic() + seconds
    while True:
        try:
            applied: list[Migration] = yield PlainTransaction(make_script, limits=MIGRATION_LIMITS)
            return applied
        except DatabaseBusy as error:
            pause_seconds = backoff.next_pause()
            if time.monotonic() + pause_seconds > gives_up_at:
                raise
            log.warning("The airflow_horsies tables are in use. Trying again in %.1f s: %s", pause_seconds, error)
        yield Pause(pause_seconds)


def _do_nothing(wire: Wire) -> Script[None]:
    return
    yield


def _grants(settings: ClientSettings) -> str:
    args = settings.database.connect_args
    user, database = args.get("user", "the user of this connection"), args.get("dbname", "the database")
    return (
        "The tables of this provider are in the Postgres schema airflow_horsies. Let a user who may create "
        "schemas run 'airflow horsies db migrate' once and grant:\n"
        f'  GRANT USAGE ON SCHEMA airflow_horsies TO "{user}";\n'
        f'  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO "{user}";\n'
        "Or let this user create the schema:\n"
        f'  GRANT CREATE ON DATABASE "{database}" TO "{user}";'
    )


def canonical_ids(task_ids: Iterable[str]) -> list[str]:
    """The distinct ids in canonical form."""
    if isinstance(task_ids, str):
        raise InvalidTask("task_ids", "must be a list of ids, not a string")
    return list(dict.fromkeys(require_task_id(task_id) for task_id in task_ids))
