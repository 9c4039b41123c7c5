"""What a task writes while it runs: log lines and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

# Limits of one read: for one task, and for all tasks together.
READ_LINES = 1_000
READ_LINES_OF_ALL = 10_000


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive lines of an attempt with the same time, level and item; no line contains a line break."""

    first_number: int
    logged_at: datetime
    level: str
    lines: Sequence[str]
    item: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that an attempt logged or printed; ``item`` is the number of the item of a chunk that wrote it."""

    attempt: int
    number: int
    logged_at: datetime
    level: str
    text: str
    item: int | None = None

    @property
    def cursor(self) -> LogCursor:
        return LogCursor(self.attempt, self.number)


@dataclass(frozen=True, slots=True, order=True)
class LogCursor:
    """The position of the last line read of a task."""

    attempt: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a running attempt: ``done`` of ``total``, if the total is known, and the current stage."""

    attempt: int
    done: int
    total: int | None = None
    stage: str | None = None
    updated_at: datetime | None = None

    @property
    def fraction(self) -> float | None:
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNews:
    """What is new of a task since the last read: the next log lines, and its progress."""

    lines: tuple[LogLine, ...] = ()
    progress: Progress | None = None


def lines_of_each(tasks: int) -> int:
    """The number of lines to read at once of each task, given the number of tasks."""
    return min(READ_LINES, max(READ_LINES_OF_ALL // max(tasks, 1), 1))
