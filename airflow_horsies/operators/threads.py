"""Threads of a triggerer for what may block: templates, XCom backends and secrets backends."""

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


class Threads:
    """A few threads, so that other triggers do not share what blocks them."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._ended_at = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work in a thread; TimeoutError if all threads are stuck before it has begun."""
        begun = time.monotonic()
        running = self._pool.submit(copy_context().run, self._work, work)
        outcome = asyncio.wrap_future(running)
        try:
            while not (await asyncio.wait([outcome], timeout=min(LOOK_SECONDS, STUCK_SECONDS)))[0]:
                stuck = time.monotonic() - max(begun, self._ended_at)
                if stuck >= STUCK_SECONDS and running.cancel():
                    raise TimeoutError(
                        f"All {THREADS} threads of the triggerer for worker-free tasks have been blocked for "
                        f"{stuck:.0f} seconds, by a template, a secrets backend or an XCom backend. "
                        "Check what they wait for."
                    )
            return outcome.result()
        finally:
            # The trigger may have been cancelled.
            running.cancel()

    def _work(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            self._ended_at = time.monotonic()
