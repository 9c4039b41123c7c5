"""A report that a task made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page that a task made of a period; ``location`` is where the task also wrote it, with its figures."""

    name: str
    period_start: datetime
    period_end: datetime
    location: str
    made_at: datetime | None = None
