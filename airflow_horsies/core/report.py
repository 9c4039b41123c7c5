"""A report that a task produced."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page about a period; ``location`` is where the task also wrote the page and its figures."""

    name: str
    period_start: datetime
    period_end: datetime
    location: str
    made_at: datetime | None = None
