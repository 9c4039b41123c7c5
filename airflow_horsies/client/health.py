"""Checks a connection, its database and its workers: one finding per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from airflow_horsies.client.client import Client
from airflow_horsies.core.cluster import WorkerState
from airflow_horsies.core.task import TaskState
from airflow_horsies.exceptions import DatabaseError, HorsiesError, SchemaUnsupported
from airflow_horsies.ledger import checks as ledger_checks
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.schema import latest_version
from airflow_horsies.wire import checks as wire_checks
from airflow_horsies.wire.checks import MissingPrivilege, OpenSchema

MAX_CLOCK_SKEW = timedelta(seconds=5)
MAX_CLAIM_AGE = timedelta(minutes=1)
MOST_CLAIMS = 1_000
MOST_SHOWN = 5
START_A_WORKER = "Start one with 'horsies worker your_module:app'."


class Status(StrEnum):
    """The outcome of a check."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check; unless it is OK, the message says what to do.

    :param blocked_by: the failed check, if any, because of which dependent checks are skipped.
    """

    check: str
    status: Status
    message: str
    blocked_by: str | None = None


_Outcome = tuple[Status, str]


def check_health(client: Client) -> Iterator[Finding]:
    """Run the checks one by one; those that depend on a failed check are skipped."""
    connection = _run("connection", lambda: _check_connection(client))
    yield connection
    yield _run("clock", lambda: _check_clock(client), after=connection)
    yield _run("notifications", lambda: _check_notifications(client), after=connection)
    schema = _run("schema", lambda: _check_schema(client), after=connection)
    yield schema
    # A missing privilege may hide the schema; without the tables of horsies no privilege is missing.
    privileges = _run("privileges", lambda: _check_privileges(client), after=connection)
    yield _skip("privileges", schema) if schema.blocked_by and privileges.status is Status.OK else privileges
    yield _run("ledger", lambda: _check_ledger(client), after=connection)
    yield _run("workers", lambda: _check_workers(client), after=schema)
    yield _run("worker releases", lambda: _check_worker_releases(client), after=schema)
    yield _run("queues", lambda: _check_queues(client), after=schema)
    yield _run("claims", lambda: _check_claims(client), after=schema)


def _run(name: str, check: Callable[[], _Outcome], *, after: Finding | None = None) -> Finding:
    if after is not None and after.blocked_by:
        return _skip(name, after)
    try:
        status, message = check()
    except HorsiesError as error:
        return Finding(check=name, status=Status.FAIL, message=str(error), blocked_by=name)
    return Finding(check=name, status=status, message=message)


def _skip(name: str, cause: Finding) -> Finding:
    message = f"Not checked, because the check of the {cause.blocked_by} failed."
    return Finding(check=name, status=Status.SKIP, message=message, blocked_by=cause.blocked_by)


def _check_connection(client: Client) -> _Outcome:
    try:
        server = client.run(wire_checks.read_server)
    except DatabaseError as error:
        raise DatabaseError(f"{error} The settings are those of {client.settings.name}.") from error
    where = f"Connected to database {server.database} as {server.username}, PostgreSQL {server.version}."
    if server.is_read_only:
        return Status.FAIL, (
            f"{where} It is read-only, perhaps a standby, so nothing can be sent. Point the connection at the primary, "
            'for example with "target_session_attrs": "read-write" in its extra.'
        )
    return Status.OK, where


def _check_clock(client: Client) -> _Outcome:
    before = datetime.now(UTC)
    server = client.run(wire_checks.read_server)
    after = datetime.now(UTC)
    skew = server.clock - (before + (after - before) / 2)
    seconds = f"{abs(skew.total_seconds()):.1f} s"
    if abs(skew) <= MAX_CLOCK_SKEW:
        return Status.OK, f"The clocks of this machine and of the database differ by {seconds}."
    return Status.WARN, (
        f"The clock of this machine is {seconds} {'behind' if skew > timedelta() else 'ahead of'} the database. "
        "Deadlines (good_until) are set by the first and applied by the second. Synchronise both with NTP."
    )


def _check_schema(client: Client) -> _Outcome:
    schema = client.schema
    try:
        schema.require_writable()
    except SchemaUnsupported as error:
        return Status.FAIL, str(error)
    if not schema.worker_has_started:
        return (
            Status.WARN,
            f"Found {schema.describe()}. No worker has ever started, so no task can end. {START_A_WORKER}",
        )
    uncovered = client.run(wire_checks.find_uncovered_classes)
    if uncovered:
        return Status.FAIL, (
            f"Found {schema.describe()}. Its history has no partition for the current time, so no task of retention "
            f"class(es) {', '.join(uncovered)} can end or be cancelled. Workers create the partitions some days ahead. "
            f"{START_A_WORKER}"
        )
    return Status.OK, f"Found {schema.describe()}."


def _check_privileges(client: Client) -> _Outcome:
    missing = client.run(wire_checks.find_missing_privileges)
    if not missing:
        open_schemas = client.run(wire_checks.find_open_schemas)
        return _warn_of(open_schemas) if open_schemas else (Status.OK, "Tasks can be read, sent and cancelled.")
    essential = any(item.purpose in ("read", "send") for item in missing)
    return Status.FAIL if essential else Status.WARN, _lacks(missing)


def _warn_of(open_schemas: Sequence[OpenSchema]) -> _Outcome:
    named = ", ".join(schema.name for schema in open_schemas)
    lines = [f"Every user may create functions in schema {named}, and statements of this user may call them. Run:"]
    return Status.WARN, "\n".join([*lines, *(schema.remedy for schema in open_schemas)])


def _check_ledger(client: Client) -> _Outcome:
    # Checked first, because reading the version needs privileges on our tables.
    missing = client.run(ledger_checks.find_missing_privileges)
    if missing:
        return Status.FAIL, _lacks(missing)
    version, ours = client.run(ledger_schema.read_version), latest_version()
    if version > ours:
        return Status.FAIL, (
            f"The airflow_horsies tables are at version {version}, and this release supports only {ours}. Nothing can "
            "be submitted. Upgrade airflow-horsies on this machine."
        )
    if version < ours:
        found = f"are at version {version} of {ours}" if version else "do not exist yet"
        return Status.WARN, (
            f"The airflow_horsies tables {found}. The first submission migrates them; to do it now, run "
            "'airflow horsies db migrate'."
        )
    return Status.OK, f"The airflow_horsies tables are at version {version}."


def _check_notifications(client: Client) -> _Outcome:
    if client.can_listen():
        return Status.OK, "The end of a task is reported at once."
    return Status.OK, 'Waiting uses polling, because the extra of the connection contains "listen": "poll".'


def _check_workers(client: Client) -> _Outcome:
    workers = client.read_workers()
    alive = [worker for worker in workers if worker.alive]
    if alive:
        served = "; ".join(f"{_place(worker)} serves {', '.join(sorted(worker.queues))}" for worker in alive)
        return Status.OK, f"{served}."
    seen_at = max((worker.seen_at for worker in workers), default=None)
    last = "None has reported in the last hour" if seen_at is None else f"The last one reported at {_at(seen_at)}"
    return Status.WARN, f"There is no live worker. {last}. Tasks wait and do not expire. {START_A_WORKER}"


def _check_worker_releases(client: Client) -> _Outcome:
    alive = {worker.id: worker for worker in client.read_workers() if worker.alive}
    if not alive:
        return Status.SKIP, "Not checked, because there is no live worker."
    schema = client.schema
    outdated = client.run(lambda: wire_checks.find_outdated_workers(schema, alive))
    if not outdated:
        return Status.OK, "No live worker is known to be older than the schema."
    useless = any(worker.is_useless for worker in outdated)
    named = "; ".join(f"worker {_place(alive[worker.worker_id])}: {worker.evidence}" for worker in outdated)
    harm = "They claim tasks and never finish them" if useless else "They may claim tasks and not finish them"
    return Status.FAIL if useless else Status.WARN, (
        f"These workers are older than the schema ({schema.describe()}): {named}. {harm}. Upgrade horsies there and "
        "restart them."
    )


def _check_queues(client: Client) -> _Outcome:
    queues = client.read_queues()
    unserved = [queue for queue in queues if queue.is_unserved]
    if not unserved:
        return Status.OK, f"{sum(queue.ready for queue in queues)} task(s) wait, all of them in served queues."
    named = "; ".join(
        f"{queue.queue!r} ({queue.ready} waiting, the oldest since {_at(queue.oldest_ready_at)})" for queue in unserved
    )
    return Status.WARN, (
        f"No live worker serves {named}. Start a worker whose app lists the queue, or cancel the tasks with "
        "'airflow horsies cancel'."
    )


def _check_claims(client: Client) -> _Outcome:
    """A live worker that lost its connection during a claim may hold a task without knowing it."""
    alive = {worker.id: worker for worker in client.read_workers() if worker.alive}
    claimed = client.list_tasks(states=[TaskState.CLAIMED], limit=MOST_CLAIMS).tasks
    limit = datetime.now(UTC) - MAX_CLAIM_AGE
    stuck = [task for task in claimed if task.worker_id in alive and task.claimed_at and task.claimed_at < limit]
    if not stuck:
        return Status.OK, "No live worker holds a task without starting it."
    shown = "; ".join(
        f"task {task.id} since {_at(task.claimed_at)}, worker {_place(alive[task.worker_id or ''])}"
        for task in stuck[:MOST_SHOWN]
    )
    more = f"; and {len(stuck) - MOST_SHOWN} more" if len(stuck) > MOST_SHOWN else ""
    return Status.WARN, (
        f"A live worker has claimed tasks and not started them: {shown}{more}. A worker that prefetches holds tasks "
        "while it is busy. Otherwise the claim lapses within minutes; restart the worker to end it at once."
    )


def _lacks(missing: Sequence[MissingPrivilege]) -> str:
    lines = [f"The user of this connection lacks {', '.join(dict.fromkeys(item.missing for item in missing))}. Run:"]
    return "\n".join([*lines, *dict.fromkeys(item.remedy for item in missing)])


def _place(worker: WorkerState) -> str:
    return f"{worker.hostname}:{worker.pid}"


def _at(instant: datetime | None) -> str:
    return "an unknown time" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S} UTC"
