"""The attempt that a child runs, and its current item: identity, log, progress and stop reason."""

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

# A task is stopped this long before horsies kills its process, so that it can clean up and the session stays warm.
SOFT_TIMEOUT_LEAD_FRACTION = 0.1
MIN_LEAD_SECONDS, MAX_LEAD_SECONDS = 2.0, 10.0
MIN_SOFT_TIMEOUT_SECONDS = 10.0
# A task that runs this long without a line is shown as running all the same.
SHOWN_AFTER_SECONDS = 0.75


class StopReason(StrEnum):
    """Why an attempt is stopped, as a clause after "because"."""

    CANCELLED = "it was cancelled"
    TIMED_OUT = "it was about to reach its timeout"
    ITEM_TIMED_OUT = "it reached its timeout"
    GOOD_UNTIL_PASSED = "its good_until passed while it ran"
    CLAIM_LOST = "horsies gave it to another worker or ended it"


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """Shared between the task's thread and the threads that watch it."""

    assignment: Assignment
    log: AttemptLog
    stops_at_good_until: bool = False
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: float = field(default_factory=time.monotonic)
    # Set once the reporter has read them from the database.
    number: int | None = None
    good_until: datetime | None = None
    lines_written: int = 0
    unwritten: list[LogChunk] = field(default_factory=list)
    progress: tuple[int, int | None, str | None] | None = None
    reports_own_progress: bool = False
    stop_reason: StopReason | None = None
    # Whether its code or its Spark jobs were interrupted. Its return value is then not its result.
    is_interrupted: bool = False
    # Cleared while the attempt is being stopped.
    settled: threading.Event = field(default_factory=_set_event)
    # None until it has ended.
    outcome: str | None = None
    finished_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    # The item that a chunk runs now.
    item: RunningItem | None = None
    reported: threading.Event = field(default_factory=threading.Event)
    # Set when its end is handed to the reporter, and when the database refused what was reported of it.
    is_handed_over: bool = False
    is_refused: bool = False
    _ending: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def task_id(self) -> str:
        return self.assignment.task_id

    @property
    def claim(self) -> Claim:
        assignment = self.assignment
        return Claim(task_id=assignment.task_id, worker_id=assignment.worker_id, claimed_at=assignment.claimed_at)

    def is_part_of(self, running: Running) -> bool:
        return running is self

    def stop(self, reason: StopReason) -> bool:
        """Set the reason; False if it is being stopped or has ended."""
        if self.stop_reason is not None or self.outcome is not None:
            return False
        self.settled.clear()
        self.stop_reason = reason
        return True

    @property
    def is_silent_success(self) -> bool:
        """Whether nobody waits for anything that its report contains."""
        has_news = self.log.has_lines or self.metrics or self.reports_own_progress
        return self.outcome == "COMPLETED" and not has_news

    @property
    def has_something_to_report(self) -> bool:
        """Whether it is shown while it runs. A short task is reported once, when it has ended."""
        return (
            self.log.has_new_lines
            or self.progress is not None
            or self.stops_at_good_until
            or time.monotonic() - self.started >= SHOWN_AFTER_SECONDS
        )

    def current_progress(self) -> Progress | None:
        if self.progress is None:
            return None
        done, total, stage = self.progress
        return Progress(attempt=self.number or 1, done=done, total=total, stage=stage)

    def find_passed_limit(self) -> StopReason | None:
        """The time limit that has passed, if any."""
        limit = self.assignment.timeout_seconds
        if (
            limit is not None
            and limit >= MIN_SOFT_TIMEOUT_SECONDS
            and time.monotonic() - self.started > limit - _lead(limit)
        ):
            return StopReason.TIMED_OUT
        if self.stops_at_good_until and self.good_until is not None and datetime.now(UTC) >= self.good_until:
            return StopReason.GOOD_UNTIL_PASSED
        return None

    def end(self, outcome: str, error_code: str | None = None, error_message: str | None = None) -> bool:
        """Set the outcome; False if it was already set, as the first outcome wins."""
        with self._ending:
            if self.outcome is not None:
                return False
            self.log.close()
            self.finished_at = datetime.now(UTC)
            self.error_code = error_code
            self.error_message = error_message
            self.outcome = outcome
        return True


@dataclass(slots=True, eq=False)
class RunningItem:
    """One try of an item of a chunk, which can be stopped alone or with its attempt.

    :param deadline: when to stop it, by the monotonic clock.
    :param good_until: when to stop it, too; None if it may end later.
    """

    attempt: RunningAttempt
    number: int
    tries: int
    deadline: float | None = None
    good_until: datetime | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    own_stop_reason: StopReason | None = None
    is_interrupted: bool = False
    settled: threading.Event = field(default_factory=_set_event)
    # Whether this try has ended, so that only one thread records how.
    has_ended: bool = False

    @property
    def task_id(self) -> str:
        return self.attempt.task_id

    @property
    def log(self) -> AttemptLog:
        return self.attempt.log

    @property
    def stop_reason(self) -> StopReason | None:
        return self.own_stop_reason or self.attempt.stop_reason

    def is_part_of(self, running: Running) -> bool:
        return running is self or running is self.attempt

    def stop(self, reason: StopReason) -> bool:
        """Set the reason; False if it is being stopped or has ended."""
        if self.stop_reason is not None or self.has_ended:
            return False
        self.settled.clear()
        self.own_stop_reason = reason
        return True

    def find_passed_limit(self) -> StopReason | None:
        """The time limit of the item that has passed, if any."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return StopReason.ITEM_TIMED_OUT
        if self.good_until is not None and datetime.now(UTC) >= self.good_until:
            return StopReason.GOOD_UNTIL_PASSED
        return None


# What can be stopped.
Running = RunningAttempt | RunningItem


def _lead(limit: float) -> float:
    return min(max(limit * SOFT_TIMEOUT_LEAD_FRACTION, MIN_LEAD_SECONDS), MAX_LEAD_SECONDS)
