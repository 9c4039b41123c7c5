"""How an item of a chunk ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOutcome:
    """
    How an item ended; written once.

    :param number: the position of the item in the chunk.
    :param attempt: the attempt of the chunk.
    :param tries: how often the item was tried in that attempt.
    :param started_at: the start of the last try; None if the item was not started.
    :param value: the result as JSON; None unless it completed.
    """

    number: int
    outcome: str
    attempt: int
    tries: int
    started_at: datetime | None
    finished_at: datetime
    error_code: str | None = None
    error_message: str | None = None
    value: str | None = None
    hostname: str | None = None
