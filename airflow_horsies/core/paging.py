"""Pages and parts of long listings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_horsies.core.task import TaskView
from airflow_horsies.core.validation import require_int
from airflow_horsies.core.workflow import WorkflowSummary

MAX_PAGE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """The position where the next page of a listing begins."""

    at: datetime
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """One page of a listing, newest first; ``next`` is None on the last page. Results and attempts are omitted."""

    tasks: tuple[TaskView, ...]
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPage:
    """One page of a listing, the workflow that changed last first; ``next`` is None on the last page."""

    workflows: tuple[WorkflowSummary, ...]
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTasks:
    """The failed and expired tasks of the searched range, newest first; ``next`` continues the search."""

    ids: tuple[str, ...]
    searched_to: datetime | None
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows between two times, limited to a range in the order of time and key."""

    since: datetime | None = None
    until: datetime | None = None
    from_at: datetime | None = None
    from_key: str | None = None
    to_at: datetime | None = None
    to_key: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        return asdict(self)


def require_page_size(limit: object) -> None:
    require_int("limit", limit, 1, MAX_PAGE)
