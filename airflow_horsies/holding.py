"""
How long a task must not resume after it left its process.

A task that defers, or a sensor that reschedules itself, ends its process, and the scheduler hears of that later. If the
task is queued again by then, the scheduler takes that end for the end of the new process and fails the task with a
state mismatch (apache/airflow#72716 and #71172, open in Airflow 3.3.2). A trigger cannot see what the scheduler has
heard, so time decides. Three things happen after the deferral:

- the process ends, which takes moments;
- its supervisor notices, at once or, where it looked a moment too early, after ``[workers] min_heartbeat_interval``:
  measured, that befalls about every fourth process;
- the scheduler comes round, which takes longer the busier the machine is. So does the start of the trigger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from airflow import __version__ as airflow_version
from airflow.providers.common.compat.sdk import conf
from packaging.version import Version

# The scheduler comes round every second when it is idle.
SCHEDULER_SECONDS = 2.0
# A trigger that took so many seconds to start tells of a scheduler that takes as many, and as many again.
LATENESS_FACTOR = 2.0
# A sensor that reschedules itself cannot tell how busy the machine is.
RESCHEDULE_SECONDS = 10.0
LONGEST_HOLD_SECONDS = 30.0

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


async def hold(deferred_at: str | None, started_at: datetime) -> float:
    """
    Wait until the task may resume; the seconds that took.

    :param deferred_at: when the task left its process; None holds nothing.
    :param started_at: when the trigger started.
    """
    if deferred_at is None:
        return 0.0
    begun = datetime.now(UTC)
    seconds = (resume_after(datetime.fromisoformat(deferred_at), started_at) - begun).total_seconds()
    if seconds <= 0:
        return 0.0
    # Where the clocks of two machines differ, the bound is kept anyway.
    await asyncio.sleep(min(seconds, LONGEST_HOLD_SECONDS))
    return (datetime.now(UTC) - begun).total_seconds()


def resume_after(deferred_at: datetime, started_at: datetime) -> datetime:
    """When the scheduler has certainly heard of the end of the process that deferred."""
    lateness = max((started_at - deferred_at).total_seconds(), 0)
    wanted = _configured_seconds()
    if wanted is None:
        wanted = min(_notice_seconds() + SCHEDULER_SECONDS + LATENESS_FACTOR * lateness, LONGEST_HOLD_SECONDS)
    return deferred_at + timedelta(seconds=wanted)


def earliest_reschedule() -> datetime:
    """Before which a sensor that leaves its process now must not be started again."""
    wanted = _configured_seconds()
    return datetime.now(UTC) + timedelta(seconds=_notice_seconds() + RESCHEDULE_SECONDS if wanted is None else wanted)


def _notice_seconds() -> float:
    """How late a supervisor may notice that its process has ended."""
    return float(conf.get("workers", "min_heartbeat_interval", fallback=5))


def _configured_seconds() -> float | None:
    given = conf.get("horsies", "resume_hold_seconds", fallback=None)
    return float(given) if given else None
