"""Waits for callbacks on an event loop: the part of the hub that knows them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial

from airflow_horsies.core.callback import Callback, CallbackState
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied, HorsiesError
from airflow_horsies.ledger.callbacks import read_callbacks

log = logging.getLogger(__name__)

# How long a missing privilege must last before the waiters fail.
LASTING_SECONDS = 30.0
RETRY_SECONDS = 5.0

Callbacks = dict[str, Callback]


class CallbackWaiter:
    """A callback that somebody waits for; ``callback`` is what is known of it."""

    def __init__(self, callback_id: str) -> None:
        self.id = callback_id
        self.callback: Callback | None = None
        self.is_missing = False
        self._error: HorsiesError | None = None
        self._news = asyncio.Event()
        self._ends_at = math.inf

    @property
    def is_over(self) -> bool:
        """Whether it has an outcome, as far as was read."""
        return self.is_missing or (self.callback is not None and self.callback.state is not CallbackState.OPEN)

    def seconds_left(self) -> float:
        """Until it expires, unless a heartbeat has moved that since it was read."""
        return self._ends_at - time.monotonic()

    async def over(self) -> None:
        """Wait until the callback has an outcome or its time is over; raise a lasting error of the hub."""
        while not self.is_over and self.seconds_left() > 0:
            if self._error is not None:
                raise self._error
            seconds = None if self._ends_at == math.inf else self.seconds_left()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._news.clear()
        if self._error is not None and not self.is_over:
            raise self._error

    def deliver(self, callback: Callback | None) -> None:
        self.callback, self.is_missing = callback, callback is None
        self._ends_at = math.inf if callback is None else time.monotonic() + callback.seconds_left
        self._news.set()

    def fail(self, error: HorsiesError) -> None:
        self._error = error
        self._news.set()


class CallbackBoard:
    """Which callbacks the waiters of an event loop wait for, and which of them are to be read again."""

    def __init__(self) -> None:
        self.waiters: defaultdict[str, set[CallbackWaiter]] = defaultdict(set)
        # When to read again though nobody asked for it.
        self.due: float | None = None
        self._unread: set[str] = set()
        self._failing_since: float | None = None

    def add(self, waiter: CallbackWaiter) -> None:
        self.waiters[waiter.id].add(waiter)
        self._unread.add(waiter.id)

    def remove(self, waiter: CallbackWaiter) -> None:
        self.waiters[waiter.id].discard(waiter)
        if not self.waiters[waiter.id]:
            del self.waiters[waiter.id]

    def read_again(self) -> None:
        self._unread.update(self.waiters)

    def hear(self, callback_id: str) -> bool:
        """Whether a notification concerns a waiter."""
        if callback_id not in self.waiters:
            return False
        self._unread.add(callback_id)
        return True

    async def look(self, run: Callable[[Callable[[], Script[Callbacks]]], Awaitable[Callbacks]]) -> None:
        """Read what changed and tell the waiters.

        :param run: runs a script in a transaction; it raises our errors.
        """
        unread: Collection[str] = self._unread & self.waiters.keys()
        self._unread, self.due = set(), None
        if not unread:
            return
        try:
            found = await run(partial(read_callbacks, unread))
        except AccessDenied as error:
            # It concerns callbacks only; the waiters for tasks go on.
            self._unread.update(unread)
            self._give_up(error)
            return
        except BaseException:
            self._unread.update(unread)
            raise
        self._failing_since = None
        for callback_id in unread:
            for waiter in tuple(self.waiters.get(callback_id, ())):
                waiter.deliver(found.get(callback_id))

    def fail_all(self, error: HorsiesError) -> None:
        for waiter in {waiter for waiters in self.waiters.values() for waiter in waiters}:
            waiter.fail(error)

    def _give_up(self, error: HorsiesError) -> None:
        """Fail the waiters once the error has lasted; until then, read again soon."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= LASTING_SECONDS:
            self._failing_since = None
            self.fail_all(error)
            return
        log.warning("Cannot read callbacks. Trying again in %.0f s: %s", RETRY_SECONDS, error)
        self.due = now + RETRY_SECONDS
