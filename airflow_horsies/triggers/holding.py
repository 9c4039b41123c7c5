"""
How long a task must not resume after it left its process.

A task that defers, or a sensor that reschedules itself, ends its process, and the scheduler learns of that later. If
the task is queued again by then, the scheduler takes that end for the end of the new process and fails the task with a
state mismatch (apache/airflow#72716 and #71172, open in Airflow 3.3.2). Before the scheduler certainly knows, three
things happen after the deferral:

- the process ends, which takes moments;
- its supervisor notices: at once or, if it checked a moment too early, after ``[workers] min_heartbeat_interval``. In
  measurements this is the case for every fourth to eighth process;
- the scheduler completes a loop: every second or, on an overloaded machine, every 20 seconds.

A trigger sees the last of them on Airflow's health page. The scheduler writes its heartbeat at the end of a loop, so
the loop before the second heartbeat after the notice began after it. If the page cannot be read, a time is estimated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

import httpx
from airflow import __version__ as airflow_version
from airflow.providers.common.compat.sdk import conf
from packaging.version import Version

# From the deferral to the end of the process.
PROCESS_SECONDS = 1.0
# Without a health page: how long a loop of the scheduler takes, and how much longer for each second that the trigger
# took to start, because that takes longer on a busy machine, too.
ROUND_SECONDS = 3.0
LATENESS_FACTOR = 2.0
# A sensor that reschedules itself has ended and cannot watch the scheduler.
RESCHEDULE_SECONDS = 15.0
# Less than the grace period of a deferred sensor after its time-out.
LONGEST_HOLD_SECONDS = 45.0
HEARTBEAT_SECONDS = 5.0
ASK_SECONDS = 1.0
ANSWER_SECONDS = 3.0
MAX_FAILURES = 5

# Executors that distinguish the end of an earlier process from that of the current one, and the first Airflow whose
# scheduler asks them, or spares a task that is only scheduled.
IMMUNE_EXECUTORS: Mapping[str, Version] = {
    "CeleryExecutor": Version("3.2.2"),
    "airflow.providers.celery.executors.celery_executor.CeleryExecutor": Version("3.2.2"),
}
# The first Airflow that needs no hold with any executor; none is released so far.
IMMUNE_FROM: Version | None = None


class Deferring(Protocol):
    """A trigger that knows when its task left the process."""

    deferred_at: str | None


AnyTrigger = TypeVar("AnyTrigger", bound=Deferring)


def mark_deferral(trigger: AnyTrigger, executor: str | None) -> AnyTrigger:
    """Record in the trigger that its task leaves its process now.

    :param executor: the executor of the task; None is Airflow's default.
    """
    if is_hold_needed(executor):
        trigger.deferred_at = datetime.now(UTC).isoformat()
    return trigger


def is_hold_needed(executor: str | None, airflow: str = airflow_version) -> bool:
    """Whether a task of this executor can fail because it resumes too soon."""
    release = Version(Version(airflow).base_version)
    if IMMUNE_FROM is not None and release >= IMMUNE_FROM:
        return False
    immune_from = IMMUNE_EXECUTORS.get(executor or default_executor())
    return immune_from is None or release < immune_from


def default_executor() -> str:
    """The first executor in ``[core] executor``, without its team and its alias."""
    first: str = conf.get("core", "executor").split(";")[0].split(",")[0]
    return first.rpartition("=")[2].partition(":")[0].strip() or first.strip()


class Hold:
    """
    The time for which the event of a trigger is held back. As a context manager, it watches the scheduler meanwhile.

    :param deferred_at: the ISO time at which the task left its process; None holds nothing back.
    """

    def __init__(self, deferred_at: str | None) -> None:
        self._deferred_at = None if deferred_at is None else datetime.fromisoformat(deferred_at)
        self._over: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._deferred_at is not None and _seconds_since(self._deferred_at) < LONGEST_HOLD_SECONDS:
            self._over = asyncio.create_task(_wait_for_scheduler(self._deferred_at, started_at=datetime.now(UTC)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over is not None:
            self._over.cancel()

    async def wait(self) -> float:
        """Wait until the task may resume. Returns the seconds that this took."""
        if self._over is None or self._over.done():
            return 0.0
        begun = datetime.now(UTC)
        await asyncio.wait({self._over})
        return (datetime.now(UTC) - begun).total_seconds()


async def _wait_for_scheduler(deferred_at: datetime, *, started_at: datetime) -> None:
    """Return when the scheduler knows that the process that deferred has ended."""
    # The bound holds even if the clocks of two machines differ.
    with suppress(TimeoutError):
        async with asyncio.timeout(min(LONGEST_HOLD_SECONDS, LONGEST_HOLD_SECONDS - _seconds_since(deferred_at))):
            configured = configured_seconds()
            if configured is not None:
                await _sleep_until(deferred_at + timedelta(seconds=configured))
                return
            await _sleep_until(noticed_at(deferred_at))
            if not await _has_looped_since(noticed_at(deferred_at)):
                await _sleep_until(time_to_resume(deferred_at, started_at))


async def _has_looped_since(since: datetime) -> bool:
    """Return when the scheduler has sent two heartbeats; False if that cannot be determined.

    The page shows the last heartbeat of any scheduler: two that follow each other closely are of different schedulers.
    """
    apart = timedelta(seconds=0.9 * conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=HEARTBEAT_SECONDS))
    first: datetime | None = None
    failures = 0
    while failures < MAX_FAILURES:
        latest = await _heartbeat().latest()
        if latest is None:
            failures += 1
        elif first is None:
            first = latest if latest >= since else None
        elif latest - first >= apart:
            return True
        await asyncio.sleep(ASK_SECONDS)
    return False


class _Heartbeat:
    """The scheduler's last heartbeat, read once a second for all triggers of a process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._latest: datetime | None = None

    async def latest(self) -> datetime | None:
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._asked_at >= ASK_SECONDS:
                self._latest = await asyncio.to_thread(scheduler_heartbeat)
                self._asked_at = loop.time()
            return self._latest


_heartbeats: MutableMapping[asyncio.AbstractEventLoop, _Heartbeat] = WeakKeyDictionary()


def _heartbeat() -> _Heartbeat:
    return _heartbeats.setdefault(asyncio.get_running_loop(), _Heartbeat())


def scheduler_heartbeat() -> datetime | None:
    """The scheduler's last heartbeat on Airflow's health page; None if the page does not contain it."""
    try:
        answer = httpx.get(health_url(), timeout=ANSWER_SECONDS).raise_for_status().json()
        return datetime.fromisoformat(answer["scheduler"]["latest_scheduler_heartbeat"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def health_url() -> str:
    """Beside the execution API, because all components of a deployment reach the api-server there."""
    base: str = (conf.get("api", "base_url", fallback=None) or "http://localhost:8080").rstrip("/")
    given: str = conf.get("core", "execution_api_server_url", fallback=None) or f"{base}/execution/"
    return f"{given.rstrip('/').removesuffix('/execution')}/api/v2/monitor/health"


def noticed_at(deferred_at: datetime) -> datetime:
    """The latest time at which the supervisor of the process notices its end."""
    notice = float(conf.get("workers", "min_heartbeat_interval", fallback=5))
    return deferred_at + timedelta(seconds=notice + PROCESS_SECONDS)


def time_to_resume(deferred_at: datetime, started_at: datetime) -> datetime:
    """When the scheduler has completed a loop, estimated without the health page."""
    lateness = max((started_at - deferred_at).total_seconds(), 0)
    return noticed_at(deferred_at) + timedelta(seconds=ROUND_SECONDS + LATENESS_FACTOR * lateness)


def earliest_reschedule() -> datetime:
    """The earliest time at which a sensor that leaves its process now may start again."""
    now = datetime.now(UTC)
    configured = configured_seconds()
    if configured is not None:
        return now + timedelta(seconds=configured)
    latest = scheduler_heartbeat()
    round_seconds = max(_seconds_since(latest) - HEARTBEAT_SECONDS, 0) if latest else 0
    return noticed_at(now) + timedelta(seconds=min(RESCHEDULE_SECONDS + 2 * round_seconds, LONGEST_HOLD_SECONDS))


def configured_seconds() -> float | None:
    given = conf.get("horsies", "resume_hold_seconds", fallback=None)
    return float(given) if given else None


async def _sleep_until(instant: datetime) -> None:
    await asyncio.sleep(max(-_seconds_since(instant), 0))


def _seconds_since(instant: datetime) -> float:
    return (datetime.now(UTC) - instant).total_seconds()
