"""Values shared by all waiters of one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from airflow_horsies.db.connection import Database


class Shared(Protocol):
    """A value shared by all waiters of one event loop and database."""

    database: Database

    @property
    def is_idle(self) -> bool: ...


AnyShared = TypeVar("AnyShared", bound=Shared)


class PerLoop(Generic[AnyShared]):
    """One value per event loop and key, created on first use."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, AnyShared]] = WeakKeyDictionary()

    def get(self, key: Hashable, database: Database, make: Callable[[], AnyShared]) -> AnyShared:
        # A value refers to its loop, so the entry of a closed loop would never be collected.
        for closed in [loop for loop in self._values if loop.is_closed()]:
            del self._values[closed]
        values = self._values.setdefault(asyncio.get_running_loop(), {})
        if key not in values:
            for unused in [other for other, value in values.items() if value.is_idle]:
                del values[unused]
            values[key] = make()
        if database.has_tokens:
            # The next connection uses the newest token.
            values[key].database = database
        return values[key]

    def __len__(self) -> int:
        """The number of event loops with values."""
        return len(self._values)
