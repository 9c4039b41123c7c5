"""Pages and parts of long listings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_horsies.core.task import TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """Where the next page of a listing begins."""

    at: datetime
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """One page of a listing, newest first; ``next`` is None on the last. Results and attempts are left out."""

    tasks: tuple[TaskView, ...]
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTasks:
    """The failed and expired ones among the tasks that were searched, newest first; ``next`` goes on searching."""

    ids: tuple[str, ...]
    searched_to: datetime | None
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows between two times, and of these those from one place in the order of time and key up to another."""

    since: datetime | None = None
    until: datetime | None = None
    from_at: datetime | None = None
    from_key: str | None = None
    to_at: datetime | None = None
    to_key: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        return asdict(self)
