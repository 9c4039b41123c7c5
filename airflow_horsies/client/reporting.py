"""The client of workers: reports of attempts, requests to stop, and housekeeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from airflow_horsies.core.log import LogChunk, Progress
from airflow_horsies.core.report import Report
from airflow_horsies.db.connection import Database
from airflow_horsies.db.limits import LIMITS
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script
from airflow_horsies.ledger import attempts, reports
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.cancelling import CANCELS_AT_ONCE, carry_out_requests
from airflow_horsies.ledger.pruning import PRUNE_AFTER, PrunedPage, PruneRule, prune_page
from airflow_horsies.ledger.pruning import SINCE as PRUNED_SINCE
from airflow_horsies.wire.cluster import read_workers
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")

__all__ = [
    "PRUNE_AFTER",
    "BegunAttempt",
    "EndedAttempt",
    "PruneRule",
    "PrunedPage",
    "Claim",
    "ClaimState",
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
class BegunAttempt:
    """The number of a started attempt, its lines already written, and its deadline."""

    number: int
    lines_written: int
    good_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """How an attempt ended."""

    finished_at: datetime
    outcome: str
    error_code: str | None = None
    error_message: str | None = None
    metrics: Mapping[str, Any] | None = None


class WorkerClient:
    """One connection of a worker child, with time limits; ``asked_at`` is when it started to wait for an answer."""

    def __init__(self, database: Database, *, is_limited: bool = True) -> None:
        self.session = Session(database, limits=LIMITS if is_limited else None)
        self.asked_at: float | None = None
        self._wire: Wire | None = None

    def close(self) -> None:
        self.session.close()

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

    def begin_attempt(self, claim: Claim, *, hostname: str, pid: int, started_at: datetime) -> BegunAttempt | None:
        """Record the start of an attempt; None if the task no longer belongs to this worker."""
        wire = self._known_wire()

        def begin() -> Script[BegunAttempt | None]:
            rows = yield wire.read_running_task(claim.task_id, claim.worker_id, claim.claimed_at)
            if not rows:
                return None
            number = int(rows[0]["retry_count"] or 0) + 1
            yield from attempts.commit_lazily()
            lines = yield from attempts.begin_attempt(
                claim.task_id, number, worker_id=claim.worker_id, hostname=hostname, pid=pid, started_at=started_at
            )
            return BegunAttempt(number=number, lines_written=lines, good_until=rows[0]["good_until"])

        return self._run(begin)

    def report_attempt(
        self,
        task_id: str,
        number: int,
        *,
        lines: Sequence[LogChunk],
        progress: Progress | None,
        ended: EndedAttempt | None,
    ) -> None:
        """Write the news of an attempt in one transaction."""

        def report() -> Script[None]:
            yield from attempts.commit_lazily()
            if lines:
                yield from attempts.append_lines(task_id, number, lines)
            if progress is not None and ended is None:
                yield from attempts.write_progress(task_id, progress)
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

        self._run(report)

    def read_claim(self, claim: Claim) -> ClaimState:
        wire = self._known_wire()

        def read() -> Script[ClaimState]:
            if (yield from attempts.is_cancel_requested(claim.task_id)):
                return ClaimState.CANCELLED
            rows = yield wire.read_running_task(claim.task_id, claim.worker_id, claim.claimed_at)
            return ClaimState.HELD if rows else ClaimState.LOST

        return self._run(read)

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
