"""The client of workers: reports of attempts, requests to stop, and housekeeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from airflow_horsies.core.catalog import KnownKind
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.core.log import LogChunk, Progress
from airflow_horsies.core.report import Report
from airflow_horsies.db.connection import Database
from airflow_horsies.db.limits import LIMITS
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Row, Script
from airflow_horsies.ledger import attempts, callbacks, catalog, items, reports
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.cancelling import CANCELS_AT_ONCE, carry_out_requests
from airflow_horsies.ledger.catalog import CatalogEntry
from airflow_horsies.ledger.pruning import PRUNE_AFTER, PrunedPage, PruneRule, prune_page
from airflow_horsies.ledger.pruning import SINCE as PRUNED_SINCE
from airflow_horsies.wire.cluster import read_workers
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")

__all__ = [
    "PRUNE_AFTER",
    "AttemptNews",
    "BegunAttempt",
    "BegunChunk",
    "CatalogEntry",
    "ChunkNews",
    "Claim",
    "ClaimState",
    "EndedAttempt",
    "KnownKind",
    "PruneRule",
    "PrunedPage",
    "StartedAttempt",
    "WorkerClient",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of a worker on the task of an attempt."""

    task_id: str
    worker_id: str
    claimed_at: datetime | None


class ClaimState(Enum):
    """Whether the attempt may continue."""

    HELD = auto()
    CANCELLED = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """Who runs an attempt, and since when."""

    claim: Claim
    hostname: str
    pid: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunAttempt:
    """The number of a started attempt, the lines of its earlier runs, its deadline, and whether it may continue."""

    number: int
    lines_written: int
    good_until: datetime | None
    state: ClaimState


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """How an attempt ended."""

    finished_at: datetime
    outcome: str
    error_code: str | None = None
    error_message: str | None = None
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunChunk:
    """
    What an attempt of a chunk must know before it runs an item.

    :param number: the number of the attempt.
    :param recorded: the outcomes by number of the items that already have one.
    :param dropped: the numbers of the items that must not be started.
    """

    number: int
    good_until: datetime | None
    recorded: Mapping[int, str]
    dropped: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkNews:
    """Whether an attempt of a chunk may continue, and which items must not be started any more."""

    claim: ClaimState
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNews:
    """What there is to write of an attempt."""

    lines: Sequence[LogChunk] = ()
    progress: Progress | None = None
    ended: EndedAttempt | None = None

    def __bool__(self) -> bool:
        return bool(self.lines or self.progress or self.ended)

    def after(self, lines_written: int, *, number: int) -> AttemptNews:
        """The news of an attempt with this number, whose lines follow those already written."""
        lines = [replace(chunk, first_number=chunk.first_number + lines_written) for chunk in self.lines]
        progress = None if self.progress is None else replace(self.progress, attempt=number)
        return replace(self, lines=lines, progress=progress)


class WorkerClient:
    """One connection of a worker child, with time limits; ``asked_at`` is when it started to wait for an answer."""

    def __init__(self, database: Database, *, is_limited: bool = True) -> None:
        self.session = Session(database, limits=LIMITS if is_limited else None)
        self.asked_at: float | None = None
        self._wire: Wire | None = None
        self._supports_chunks = False

    def close(self) -> None:
        self.session.close()

    def forget_schema(self) -> None:
        """Detect the schema of horsies again before the next statement."""
        self._wire = None

    def hang_up(self) -> None:
        """End a wait for an answer; called from another thread."""
        self.session.hang_up()

    # -- attempts ------------------------------------------------------------------------------------------------------

    def find_claim(self, *, hostname: str, pid: int) -> Claim | None:
        """The task that a process of a worker runs now, from the table."""
        wire = self._known_wire()

        def find() -> Script[Claim | None]:
            rows = yield wire.find_running_task(hostname, pid)
            if not rows:
                return None
            row = rows[0]
            return Claim(task_id=row["id"], worker_id=row["worker_id"], claimed_at=row["claimed_at"])

        return self._run(find)

    def begin_attempt(self, started: StartedAttempt, news: AttemptNews) -> BegunAttempt | None:
        """Record the start of an attempt and its first news; None if the task no longer belongs to this worker.

        The lines of the news are numbered from 1, and the number of the attempt in its progress is not read.
        """
        wire = self._known_wire()
        claim = started.claim

        def begin() -> Script[BegunAttempt | None]:
            rows = yield wire.find_claimed_tasks([_values(claim)])
            if not rows:
                return None
            number = _number(rows[0])
            yield from attempts.commit_lazily()
            lines = yield from attempts.begin_attempt(
                claim.task_id,
                number,
                worker_id=claim.worker_id,
                hostname=started.hostname,
                pid=started.pid,
                started_at=started.started_at,
            )
            yield from _write(claim.task_id, number, news.after(lines, number=number))
            return BegunAttempt(
                number=number, lines_written=lines, good_until=rows[0]["good_until"], state=_state(rows[0]["status"])
            )

        return self._run(begin)

    def report_attempt(self, task_id: str, number: int, news: AttemptNews) -> None:
        """Write the news of an attempt in one transaction."""

        def report() -> Script[None]:
            yield from attempts.commit_lazily()
            yield from _write(task_id, number, news)

        self._run(report)

    def record_completed(self, completed: Sequence[tuple[StartedAttempt, datetime]]) -> None:
        """Record attempts that succeeded without news, each with its end; all by the same process.

        horsies may have ended their tasks meanwhile. Tasks that no longer belong to this worker are omitted.
        """
        wire = self._known_wire()
        by_task = {started.claim.task_id: (started, finished_at) for started, finished_at in completed}

        def record() -> Script[None]:
            rows = yield wire.find_claimed_tasks([_values(started.claim) for started, _ in by_task.values()])
            found = [_completed(row, *by_task[row["id"]]) for row in rows]
            if found:
                started = completed[0][0]
                yield from attempts.commit_lazily()
                yield from attempts.record_attempts(found, hostname=started.hostname, pid=started.pid)

        self._run(record)

    def read_claim(self, claim: Claim) -> ClaimState:
        wire = self._known_wire()

        def read() -> Script[ClaimState]:
            if (yield from attempts.is_cancel_requested(claim.task_id)):
                return ClaimState.CANCELLED
            rows = yield wire.read_running_task(claim.task_id, claim.worker_id, claim.claimed_at)
            return ClaimState.HELD if rows else ClaimState.LOST

        return self._run(read)

    # -- chunks --------------------------------------------------------------------------------------------------------

    def begin_chunk(self, claim: Claim) -> BegunChunk | None:
        """What earlier attempts have left; None if the task no longer belongs to this worker."""
        wire = self._known_wire()
        if not self._supports_chunks:
            self._run(items.require_chunks)
            self._supports_chunks = True

        def begin() -> Script[BegunChunk | None]:
            rows = yield wire.read_running_task(claim.task_id, claim.worker_id, claim.claimed_at)
            recorded = yield from items.read_recorded(claim.task_id)
            dropped = yield from items.read_dropped(claim.task_id)
            if not rows:
                return None
            return BegunChunk(
                number=int(rows[0]["retry_count"] or 0) + 1,
                good_until=rows[0]["good_until"],
                recorded=recorded,
                dropped=dropped,
            )

        return self._run(begin)

    def report_items(self, claim: Claim, ended: Sequence[ItemOutcome]) -> ChunkNews:
        """Write outcomes durably, only while the worker has the claim. Nothing is written without it; without outcomes,
        the claim is only read."""
        wire = self._known_wire()

        def report() -> Script[ChunkNews]:
            if ended:
                yield from items.lock_tables()
            # A lock is a write too, which a confirmation several times a second does not need.
            find = wire.lock_running_task if ended else wire.read_running_task
            rows = yield find(claim.task_id, claim.worker_id, claim.claimed_at)
            dropped = yield from items.read_dropped(claim.task_id)
            if not rows:
                cancelled = yield from attempts.is_cancel_requested(claim.task_id)
                return ChunkNews(claim=ClaimState.CANCELLED if cancelled else ClaimState.LOST)
            if ended:
                yield from items.record_items(claim.task_id, ended)
            return ChunkNews(claim=ClaimState.HELD, dropped=dropped)

        return self._run(report)

    def record_worker(self, *, hostname: str, pid: int, release: str, features: Collection[str]) -> bool:
        """Record what a worker can do; False if the tables are too old for it."""

        def record() -> Script[bool]:
            yield from attempts.commit_lazily()
            return (yield from items.record_worker(hostname=hostname, pid=pid, release=release, features=features))

        return self._run(record)

    def record_catalog(
        self,
        *,
        hostname: str,
        pid: int,
        digest: bytes,
        release: str,
        queues: Sequence[str],
        entries: Sequence[CatalogEntry],
    ) -> bool | None:
        """
        Record what a worker knows; None if the tables are too old for it.

        :param entries: may be left out if they are recorded.
        :returns: whether they had been recorded before.
        """

        def record() -> Script[bool | None]:
            yield from attempts.commit_lazily()
            return (
                yield from catalog.record_catalog(
                    hostname=hostname, pid=pid, digest=digest, release=release, queues=queues, entries=entries
                )
            )

        return self._run(record)

    # -- workflows -----------------------------------------------------------------------------------------------------

    def find_paused_workflows(self, workflow_id: str) -> list[str] | None:
        """The paused workflows of a tree whose parents are not paused; None if the workflow does not exist."""
        wire = self._known_wire()

        def find() -> Script[list[str] | None]:
            # Read inside: the rows of a pipeline are gone after it.
            rows = yield wire.find_paused_workflows(workflow_id)
            return [row["id"] for row in rows if row["is_to_be_resumed"]] if rows else None

        return self._run(find)

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def mint_callback_token(self, callback_id: str, task_id: str, digest: bytes) -> str | None:
        """Store the digest of a token of a task; returns the address of the Airflow that waits, None if none waits."""
        return self._run(lambda: callbacks.mint_token(callback_id, task_id, digest))

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def find_prunable(self) -> bool:
        """Whether there are tables to prune; CutoverPending while tasks are moving to the history."""
        if self._run(ledger_schema.read_version) < PRUNED_SINCE:
            return False
        self._wire = Wire(self._run(detect_schema))
        # A task that is moving to the history is in neither table, and must not be taken for removed.
        self._wire.schema.require_writable()
        return True

    def carry_out_requests(self) -> None:
        """Carry out the requested cancels."""
        while len(self._run(partial(carry_out_requests, self._known_wire()))) == CANCELS_AT_ONCE:
            pass

    def count_live_workers(self) -> int:
        return sum(worker.alive for worker in self._run(partial(read_workers, self._known_wire())))

    def prune_page(self, rule: PruneRule, *, after: str | None) -> PrunedPage | None:
        return self._run(partial(prune_page, self._known_wire(), rule, after=after))

    # -- reports -------------------------------------------------------------------------------------------------------

    def save_report(self, report: Report, page: str) -> None:
        """Store the page for the web server of Airflow."""

        def save() -> Script[None]:
            yield from ledger_schema.migrate()
            yield from reports.save_report(report, page)

        self.session.run(save)

    def _run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = True) -> T:
        self.asked_at = time.monotonic()
        try:
            return self.session.run(make_script, pipelined=pipelined)
        finally:
            self.asked_at = None

    def _known_wire(self) -> Wire:
        if self._wire is None:
            self._run(ledger_schema.create, pipelined=False)
            self._wire = Wire(self._run(detect_schema))
        return self._wire


def _values(claim: Claim) -> tuple[str, str, datetime | None]:
    return claim.task_id, claim.worker_id, claim.claimed_at


def _number(row: Row) -> int:
    """horsies counts a retry when an attempt has ended and another follows."""
    return int(row["retry_count"] or 0) + 1


def _state(status: str) -> ClaimState:
    match status:
        case "RUNNING":
            return ClaimState.HELD
        case "CANCELLED":
            return ClaimState.CANCELLED
    return ClaimState.LOST


def _completed(row: Row, started: StartedAttempt, finished_at: datetime) -> attempts.CompletedAttempt:
    return attempts.CompletedAttempt(
        task_id=row["id"],
        number=_number(row),
        worker_id=started.claim.worker_id,
        started_at=started.started_at,
        finished_at=finished_at,
    )


def _write(task_id: str, number: int, news: AttemptNews) -> Script[None]:
    if news.lines:
        yield from attempts.append_lines(task_id, number, news.lines)
    ended = news.ended
    if ended is not None:
        yield from attempts.end_attempt(
            task_id,
            number,
            finished_at=ended.finished_at,
            outcome=ended.outcome,
            error_code=ended.error_code,
            error_message=ended.error_message,
            metrics=ended.metrics,
        )
    elif news.progress is not None:
        yield from attempts.write_progress(task_id, news.progress)
