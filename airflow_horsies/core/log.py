"""What a task writes while it runs: lines and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

# At once: of one task, and of all tasks together.
READ_LINES = 1_000
READ_LINES_OF_ALL = 10_000


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines of an attempt that were written at one time; none of them holds a line break or is missing."""

    first_number: int
    logged_at: datetime
    level: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that an attempt logged or printed."""

    attempt: int
    number: int
    logged_at: datetime
    level: str
    text: str

    @property
    def cursor(self) -> LogCursor:
        return LogCursor(self.attempt, self.number)


@dataclass(frozen=True, slots=True, order=True)
class LogCursor:
    """The last line somebody has seen of a task."""

    attempt: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running attempt is: ``done`` of ``total``, where the total is known, and what it is doing."""

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
    """What workers told of a task since somebody looked: the next lines, and how far it is now."""

    lines: tuple[LogLine, ...] = ()
    progress: Progress | None = None


def lines_of_each(tasks: int) -> int:
    """How many lines of each of so many tasks are read at once."""
    return min(READ_LINES, max(READ_LINES_OF_ALL // max(tasks, 1), 1))
