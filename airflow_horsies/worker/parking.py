"""The thread of a child that gives parked tasks the time to resume.

horsies retries a parked attempt after an interval of its policy. Once the task is PENDING, this thread looks for a
signal that arrived in between, and else sets the time at which the wait ends. If the process dies before, the task
resumes after the interval, looks itself and parks again.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from airflow_horsies.client.mailbox import MailboxClient, ParkedTask, Settled
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.exceptions import HorsiesError

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.005
MAX_PAUSE_SECONDS = 0.5
# horsies ends an attempt within milliseconds. Afterwards, the interval of the policy is enough.
GIVE_UP_SECONDS = 60.0
FLUSH_SECONDS = 5.0
# A connection without use for this long is closed.
IDLE_SECONDS = 5.0
# Hints when waits end: without one, a worker notices within its own poll.
MAX_HINTS = 10_000
MAX_HINT_SECONDS = 86_400.0


@dataclass(slots=True, eq=False)
class _Unsettled:
    parked: ParkedTask
    gives_up_at: float
    try_at: float
    pause: float = FIRST_PAUSE_SECONDS


class Parker:
    """
    :param make_client: makes a client with a connection of its own.
    """

    def __init__(self, make_client: Callable[[type[MailboxClient]], WorkerClient]) -> None:
        self._make_client = make_client
        self._client: MailboxClient | None = None
        self._new: deque[ParkedTask] = deque()
        self._unsettled: list[_Unsettled] = []
        self._hints: list[tuple[float, str, str]] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._used = 0.0

    def add(self, parked: ParkedTask) -> None:
        """Settle the attempt once it has ended."""
        self._new.append(parked)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="horsies-parking", daemon=True)
            self._thread.start()
        self._wake.set()

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Settle what is left, within a limited time; called when the process ends."""
        gives_up_at = time.monotonic() + seconds
        while (self._new or self._unsettled) and time.monotonic() < gives_up_at:
            time.sleep(FIRST_PAUSE_SECONDS)

    def _serve(self) -> None:
        while True:
            self._wake.wait(self._pause())
            self._wake.clear()
            now = time.monotonic()
            while self._new:
                # Not in neither list: the end of the process waits until both are empty.
                self._unsettled.append(_Unsettled(self._new[0], now + GIVE_UP_SECONDS, now + FIRST_PAUSE_SECONDS))
                self._new.popleft()
            for waiting in [one for one in self._unsettled if one.try_at <= now]:
                self._try(waiting)
            self._give_hints()
            self._close_if_idle()

    def _pause(self) -> float | None:
        """Until there is something to do."""
        times = [waiting.try_at for waiting in self._unsettled]
        times += [self._hints[0][0]] if self._hints else []
        times += [self._used + IDLE_SECONDS] if self._client is not None else []
        return None if not times else max(min(times) - time.monotonic(), 0.0)

    def _try(self, waiting: _Unsettled) -> None:
        parked = waiting.parked
        settled, queue = Settled.NOT_YET, None
        try:
            settled, queue = self._connected().settle(parked)
        except HorsiesError as error:
            log.warning("Setting when task %s resumes failed and is tried again: %s", _id(parked), error)
            waiting.pause = MAX_PAUSE_SECONDS
        except Exception:
            log.exception("Setting when task %s resumes failed and is tried again.", _id(parked))
            waiting.pause = MAX_PAUSE_SECONDS
        now = time.monotonic()
        if settled is Settled.DONE or now > waiting.gives_up_at:
            self._unsettled.remove(waiting)
            if settled is not Settled.DONE:
                log.warning("Task %s has not parked. It resumes after the interval of its policy.", _id(parked))
        waiting.pause = min(waiting.pause * 1.5, MAX_PAUSE_SECONDS)
        waiting.try_at = now + waiting.pause
        left = parked.seconds_left
        if queue is not None and left is not None and left < MAX_HINT_SECONDS and len(self._hints) < MAX_HINTS:
            heapq.heappush(self._hints, (now + max(left, 0.0), _id(parked), queue))

    def _give_hints(self) -> None:
        while self._hints and self._hints[0][0] <= time.monotonic():
            _, task_id, queue = heapq.heappop(self._hints)
            with suppress(Exception):
                self._connected().wake_workers(task_id, queue)

    def _connected(self) -> MailboxClient:
        if self._client is None:
            client = self._make_client(MailboxClient)
            assert isinstance(client, MailboxClient)  # noqa: S101 - narrows the type only
            self._client = client
        self._used = time.monotonic()
        return self._client

    def _close_if_idle(self) -> None:
        if self._client is not None and not self._unsettled and time.monotonic() - self._used >= IDLE_SECONDS:
            client, self._client = self._client, None
            with suppress(Exception):
                client.close()


def _id(parked: ParkedTask) -> str:
    return parked.wait.claim.task_id
