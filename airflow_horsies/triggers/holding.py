"""
How long a task must not resume after it left its process.

A task that defers, or a sensor that reschedules itself, ends its process, and the scheduler hears of that later. If the
task is queued again by then, the scheduler takes that end for the end of the new process and fails the task with a
state mismatch (apache/airflow#72716 and #71172, open in Airflow 3.3.2). Until it has certainly heard, three things
happen after the deferral:

- the process ends, which takes moments;
- its supervisor notices, at once or, where it looked a moment too early, after ``[workers] min_heartbeat_interval``:
  measured, that befalls every fourth to eighth process;
- the scheduler comes round: every second, or, on an overloaded machine, every 20 seconds.

A trigger sees the last of them on Airflow's health page: the scheduler's heartbeat is written at the end of a round, so
the round before the second heartbeat since the notice began after it. Where the page cannot be read, time decides.
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
# Without a health page: how long the scheduler takes to come round, and how much longer for each second that the
# trigger took to start, as that takes longer on a busy machine, too.
ROUND_SECONDS = 3.0
LATENESS_FACTOR = 2.0
# A sensor that reschedules itself is gone, and cannot watch the scheduler.
RESCHEDULE_SECONDS = 15.0
# Less than the grace that a deferred sensor has beyond its time-out.
LONGEST_HOLD_SECONDS = 45.0
HEARTBEAT_SECONDS = 5.0
ASK_SECONDS = 1.0
ANSWER_SECONDS = 3.0
MAX_FAILURES = 5

# Executors that tell the end of an earlier process from that of the present one, and the first Airflow whose scheduler
# asks them, or spares a task that is only scheduled.
IMMUNE_EXECUTORS: Mapping[str, Version] = {
    "CeleryExecutor": Version("3.2.2"),
    "airflow.providers.celery.executors.celery_executor.CeleryExecutor": Version("3.2.2"),
}
# The first Airflow that needs no hold with any executor. None of those released so far.
IMMUNE_FROM: Version | None = None


class Deferring(Protocol):
    """A trigger that knows when its task left the process."""

    deferred_at: str | None


AnyTrigger = TypeVar("AnyTrigger", bound=Deferring)


def mark_deferral(trigger: AnyTrigger, executor: str | None) -> AnyTrigger:
    """The trigger, told that its task leaves its process now.

    :param executor: the executor that the task names; None is Airflow's default.
    """
    if is_hold_needed(executor):
        trigger.deferred_at = datetime.now(UTC).isoformat()
    return trigger


def is_hold_needed(executor: str | None, airflow: str = airflow_version) -> bool:
    """Whether a task of this executor can be failed by resuming too soon."""
    release = Version(Version(airflow).base_version)
    if IMMUNE_FROM is not None and release >= IMMUNE_FROM:
        return False
    immune_from = IMMUNE_EXECUTORS.get(executor or default_executor())
    return immune_from is None or release < immune_from


def default_executor() -> str:
    """The first of ``[core] executor``, without its team and its alias."""
    first: str = conf.get("core", "executor").split(";")[0].split(",")[0]
    return first.rpartition("=")[2].partition(":")[0].strip() or first.strip()


class Hold:
    """
    The time in which the event of a trigger is held back. As a context, it watches the scheduler meanwhile.

    :param deferred_at: an ISO time, when the task left its process; None holds nothing.
    """

    def __init__(self, deferred_at: str | None) -> None:
        self._deferred_at = None if deferred_at is None else datetime.fromisoformat(deferred_at)
        self._over: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._deferred_at is not None and _seconds_since(self._deferred_at) < LONGEST_HOLD_SECONDS:
            self._over = asyncio.create_task(_until_heard(self._deferred_at, started_at=datetime.now(UTC)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over is not None:
            self._over.cancel()

    async def wait(self) -> float:
        """Return when the task may resume; the seconds that took."""
        if self._over is None or self._over.done():
            return 0.0
        begun = datetime.now(UTC)
        await asyncio.wait({self._over})
        return (datetime.now(UTC) - begun).total_seconds()


async def _until_heard(deferred_at: datetime, *, started_at: datetime) -> None:
    """Return when the scheduler has heard of the end of the process that deferred."""
    # Where the clocks of two machines differ, the bound is kept anyway.
    with suppress(TimeoutError):
        async with asyncio.timeout(min(LONGEST_HOLD_SECONDS, LONGEST_HOLD_SECONDS - _seconds_since(deferred_at))):
            configured = configured_seconds()
            if configured is not None:
                await _sleep_until(deferred_at + timedelta(seconds=configured))
                return
            await _sleep_until(noticed_at(deferred_at))
            if not await _has_come_round(noticed_at(deferred_at)):
                await _sleep_until(time_to_resume(deferred_at, started_at))


async def _has_come_round(since: datetime) -> bool:
    """Return when the scheduler has reported twice; False where that cannot be known.

    The page has the report of whichever scheduler came last: two that follow each other closely are not of the same.
    """
    apart = timedelta(seconds=0.9 * conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=HEARTBEAT_SECONDS))
    first: datetime | None = None
    failures = 0
    while failures < MAX_FAILURES:
        latest = await _pulse().latest()
        if latest is None:
            failures += 1
        elif first is None:
            first = latest if latest >= since else None
        elif latest - first >= apart:
            return True
        await asyncio.sleep(ASK_SECONDS)
    return False


class _Pulse:
    """The scheduler's last heartbeat, asked for once a second, however many triggers want to know."""

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


_pulses: MutableMapping[asyncio.AbstractEventLoop, _Pulse] = WeakKeyDictionary()


def _pulse() -> _Pulse:
    return _pulses.setdefault(asyncio.get_running_loop(), _Pulse())


def scheduler_heartbeat() -> datetime | None:
    """When the scheduler reported last, by Airflow's health page; None where that does not say."""
    try:
        answer = httpx.get(health_url(), timeout=ANSWER_SECONDS).raise_for_status().json()
        return datetime.fromisoformat(answer["scheduler"]["latest_scheduler_heartbeat"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def health_url() -> str:
    """Beside the execution API, as that is where the components of a deployment find the api-server."""
    base: str = (conf.get("api", "base_url", fallback=None) or "http://localhost:8080").rstrip("/")
    given: str = conf.get("core", "execution_api_server_url", fallback=None) or f"{base}/execution/"
    return f"{given.rstrip('/').removesuffix('/execution')}/api/v2/monitor/health"


def noticed_at(deferred_at: datetime) -> datetime:
    """When the supervisor of the process has noticed its end, at the latest."""
    notice = float(conf.get("workers", "min_heartbeat_interval", fallback=5))
    return deferred_at + timedelta(seconds=notice + PROCESS_SECONDS)


def time_to_resume(deferred_at: datetime, started_at: datetime) -> datetime:
    """When the scheduler has come round, by all that is known without asking."""
    lateness = max((started_at - deferred_at).total_seconds(), 0)
    return noticed_at(deferred_at) + timedelta(seconds=ROUND_SECONDS + LATENESS_FACTOR * lateness)


def earliest_reschedule() -> datetime:
    """Before which a sensor that leaves its process now must not be started again."""
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
