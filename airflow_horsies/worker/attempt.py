"""The attempt that a child runs: who it is, what it wrote, how far it is, and whether it must stop."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from airflow_horsies.borrowed.horsies import Assignment
from airflow_horsies.client.reporting import Claim
from airflow_horsies.core.log import LogChunk, Progress
from airflow_horsies.worker.logs import AttemptLog

# A task that is stopped this long before horsies would kill its process can clean up, and leaves the session warm.
SOFT_TIMEOUT_LEAD_PART = 0.1
LEAST_LEAD_SECONDS, MOST_LEAD_SECONDS = 2.0, 10.0
LEAST_SOFT_TIMEOUT_SECONDS = 10.0


class StopReason(StrEnum):
    """Why an attempt is made to stop."""

    CANCELLED = "it was cancelled"
    TIMED_OUT = "its timeout was about to be over"
    GOOD_UNTIL_PASSED = "its good_until passed while it ran"
    CLAIM_LOST = "horsies gave it to another worker, or ended it"


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """Shared between the task's own thread and those that watch it."""

    assignment: Assignment
    log: AttemptLog
    stops_at_good_until: bool = False
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: float = field(default_factory=time.monotonic)
    # Known once the reporter has asked the database.
    number: int | None = None
    good_until: datetime | None = None
    lines_written: int = 0
    unwritten: list[LogChunk] = field(default_factory=list)
    progress: tuple[int, int | None, str | None] | None = None
    tells_own_progress: bool = False
    stop_reason: StopReason | None = None
    # Whether its code or its Spark jobs were cut short; what it returns then is not its result.
    is_interrupted: bool = False
    # Cleared while something that stops it is under way.
    settled: threading.Event = field(default_factory=_set_event)
    # None until it has ended.
    outcome: str | None = None
    finished_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    reported: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def task_id(self) -> str:
        return self.assignment.task_id

    @property
    def claim(self) -> Claim:
        given = self.assignment
        return Claim(task_id=given.task_id, worker_id=given.worker_id, claimed_at=given.claimed_at)

    def current_progress(self) -> Progress | None:
        if self.progress is None or self.number is None:
            return None
        done, total, stage = self.progress
        return Progress(attempt=self.number, done=done, total=total, stage=stage)

    def reason_to_stop_by_now(self) -> StopReason | None:
        """Whether its time is up."""
        limit = self.assignment.timeout_seconds
        if (
            limit is not None
            and limit >= LEAST_SOFT_TIMEOUT_SECONDS
            and time.monotonic() - self.started > limit - _lead(limit)
        ):
            return StopReason.TIMED_OUT
        if self.stops_at_good_until and self.good_until is not None and datetime.now(UTC) >= self.good_until:
            return StopReason.GOOD_UNTIL_PASSED
        return None

    def end(self, outcome: str, error_code: str | None = None, error_message: str | None = None) -> bool:
        """Whether it had not ended before: the first who says how it ended is right."""
        with self._ending:
            if self.outcome is not None:
                return False
            self.log.close()
            self.finished_at = datetime.now(UTC)
            self.error_code = error_code
            self.error_message = error_message
            self.outcome = outcome
        return True


def _lead(limit: float) -> float:
    return min(max(limit * SOFT_TIMEOUT_LEAD_PART, LEAST_LEAD_SECONDS), MOST_LEAD_SECONDS)
