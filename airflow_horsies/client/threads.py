"""Threads for what may block. The default ones of an event loop also look up the addresses of hosts, and Airflow uses
them, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

THREADS = 4
# Work that waits for a thread is given up when no thread has ended anything for this long.
STUCK_SECONDS = 30.0
LOOK_SECONDS = 5.0

T = TypeVar("T")


class ThreadsBlocked(TimeoutError):
    """All threads were blocked before the work had begun."""


class Threads:
    """
    A few threads, so that others do not share what blocks them.

    :param purpose: what runs in them.
    :param blocked_by: what may block them.
    """

    def __init__(self, name: str, *, purpose: str, blocked_by: str) -> None:
        self._purpose, self._blocked_by = purpose, blocked_by
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._ended_at = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work in a thread; ThreadsBlocked if all threads are stuck before it has begun."""
        begun = time.monotonic()
        running = self._pool.submit(copy_context().run, self._work, work)
        outcome = asyncio.wrap_future(running)
        try:
            while not (await asyncio.wait([outcome], timeout=min(LOOK_SECONDS, STUCK_SECONDS)))[0]:
                stuck = time.monotonic() - max(begun, self._ended_at)
                if stuck >= STUCK_SECONDS and running.cancel():
                    raise ThreadsBlocked(
                        f"All {THREADS} threads of this process for {self._purpose} have been blocked for "
                        f"{stuck:.0f} seconds by {self._blocked_by}. Try again later, or restart this process."
                    )
            return outcome.result()
        finally:
            # The caller may have been cancelled.
            running.cancel()

    def _work(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            self._ended_at = time.monotonic()
