"""A task does not resume before Airflow's scheduler has heard that its earlier process ended."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.version import version as airflow_version
from packaging.version import Version

from airflow_horsies.triggers import holding
from airflow_horsies.triggers.holding import (
    LONGEST_HOLD_SECONDS,
    Hold,
    default_executor,
    earliest_reschedule,
    health_url,
    is_hold_needed,
    mark_deferral,
    noticed_at,
    scheduler_heartbeat,
    time_to_resume,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTING = "AIRFLOW__HORSIES__RESUME_HOLD_SECONDS"
NOTICE = "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"


@pytest.fixture(autouse=True)
def no_health_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "scheduler_heartbeat", lambda: None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything within a second."""
    monkeypatch.setenv(NOTICE, "0.1")
    monkeypatch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC", "0.2")
    for name, seconds in {"PROCESS": 0.1, "ROUND": 0.1, "ASK": 0.05, "LONGEST_HOLD": 30}.items():
        monkeypatch.setattr(holding, f"{name}_SECONDS", seconds)


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def hold(deferred_at: datetime | None, runs_for: float = 0) -> float:
    """How long the event of a task is held back that runs for so long after its trigger started."""

    async def trigger() -> float:
        async with Hold(None if deferred_at is None else deferred_at.isoformat()) as held:
            await asyncio.sleep(runs_for)
            return await held.wait()

    return asyncio.run(trigger())


def beat(monkeypatch: pytest.MonkeyPatch, *after: float, since: datetime) -> None:
    """The health page shows heartbeats so many seconds after a time, each from then on."""
    beats = [since + timedelta(seconds=seconds) for seconds in after]

    def latest() -> datetime:
        return max((each for each in beats if each <= datetime.now(UTC)), default=since - timedelta(seconds=60))

    monkeypatch.setattr(holding, "scheduler_heartbeat", latest)


def test_task_resumes_after_the_second_heartbeat_since_its_end_was_noticed(
    monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    deferred_at = ago(0)
    beat(monkeypatch, 0.05, 0.4, 0.8, since=deferred_at)
    hold(deferred_at)
    assert 0.8 <= (datetime.now(UTC) - deferred_at).total_seconds() < 25


def test_two_schedulers_do_not_stand_for_one(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    monkeypatch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC", "1")
    deferred_at = ago(0)
    beat(monkeypatch, 0.3, 0.5, 1.4, since=deferred_at)
    hold(deferred_at)
    assert (datetime.now(UTC) - deferred_at).total_seconds() >= 1.4


def test_scheduler_that_reported_while_the_task_ran_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    deferred_at = ago(0)
    beat(monkeypatch, 0.3, 0.6, since=deferred_at)
    assert hold(deferred_at, runs_for=1.0) == 0


def test_scheduler_that_does_not_report_is_waited_for_until_the_bound(
    monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    monkeypatch.setattr(holding, "LONGEST_HOLD_SECONDS", 1.0)
    deferred_at = ago(0)
    beat(monkeypatch, 0.3, since=deferred_at)
    hold(deferred_at)
    assert 0.9 < (datetime.now(UTC) - deferred_at).total_seconds() < 25


def test_health_page_that_fails_at_times_is_asked_again(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    deferred_at = ago(0)
    beat(monkeypatch, 0.3, 0.6, since=deferred_at)
    answers, asked = holding.scheduler_heartbeat, iter(range(1000))
    monkeypatch.setattr(holding, "scheduler_heartbeat", lambda: answers() if next(asked) % 3 else None)
    hold(deferred_at)
    assert (datetime.now(UTC) - deferred_at).total_seconds() >= 0.6


def test_many_triggers_ask_once_a_second(monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    asked = []
    deferred_at = ago(0)
    monkeypatch.setattr(holding, "LONGEST_HOLD_SECONDS", 1.0)
    monkeypatch.setattr(holding, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(holding, "scheduler_heartbeat", lambda: asked.append(1) or ago(3600))

    async def triggers() -> None:
        holds = [Hold(deferred_at.isoformat()) for _ in range(100)]
        await asyncio.gather(*(each.__aenter__() for each in holds))
        await asyncio.gather(*(each.wait() for each in holds))

    asyncio.run(triggers())
    assert 1 <= len(asked) <= 6


def test_time_decides_where_there_is_no_health_page(quick: None) -> None:
    deferred_at = ago(0)
    hold(deferred_at)
    assert (datetime.now(UTC) - deferred_at).total_seconds() >= 0.3


def test_deferral_of_an_older_release_is_not_held() -> None:
    assert hold(None) == 0


def test_task_that_deferred_long_ago_is_not_held() -> None:
    assert hold(ago(LONGEST_HOLD_SECONDS)) == 0


def test_clock_that_runs_ahead_does_not_lengthen_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LONGEST_HOLD_SECONDS", 0.5)
    begun = time.monotonic()
    hold(ago(-3600))
    assert time.monotonic() - begun < 60


def test_hold_that_is_cancelled_leaves_nothing_behind(quick: None) -> None:
    async def cancelled() -> int:
        async def trigger() -> None:
            async with Hold(ago(0).isoformat()) as held:
                await held.wait()

        task = asyncio.create_task(trigger())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1


def test_notice_is_as_late_as_airflow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE, "7")
    assert noticed_at(NOW) > NOW + timedelta(seconds=7)


def test_trigger_that_starts_late_waits_longer_for_a_scheduler_it_cannot_see() -> None:
    first, second, third = (time_to_resume(NOW, NOW + timedelta(seconds=late)) for late in (0, 1, 4))
    assert noticed_at(NOW) < first < second < third


def test_setting_decides_where_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0.5")
    assert 0.3 < hold(ago(0)) < 25
    assert timedelta(0) < earliest_reschedule() - datetime.now(UTC) <= timedelta(seconds=0.5)


def test_setting_of_zero_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    assert hold(ago(0), runs_for=0.05) == 0


@pytest.mark.parametrize(("silent_for", "at_least"), [(0, 15), (25, 50)])
def test_rescheduled_sensor_stays_away_for_longer_where_the_scheduler_is_slow(
    monkeypatch: pytest.MonkeyPatch, silent_for: float, at_least: float
) -> None:
    monkeypatch.setattr(holding, "scheduler_heartbeat", lambda: ago(silent_for))
    assert timedelta(seconds=at_least) < earliest_reschedule() - datetime.now(UTC) < timedelta(seconds=60)


@pytest.mark.parametrize(
    ("execution", "base", "expected"),
    [
        ("http://api:8080/execution/", "https://airflow.example.com/team", "http://api:8080/api/v2/monitor/health"),
        ("", "https://airflow.example.com/team/", "https://airflow.example.com/team/api/v2/monitor/health"),
        ("", "", "http://localhost:8080/api/v2/monitor/health"),
    ],
)
def test_health_page_is_beside_the_execution_api(
    monkeypatch: pytest.MonkeyPatch, execution: str, base: str, expected: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", execution)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    assert health_url() == expected


@pytest.mark.parametrize(
    ("answer", "heartbeat"),
    [
        (httpx.Response(200, json={"scheduler": {"latest_scheduler_heartbeat": NOW.isoformat()}}), NOW),
        (httpx.Response(200, json={"scheduler": {"latest_scheduler_heartbeat": None}}), None),
        (httpx.Response(200, json={"scheduler": {}}), None),
        (httpx.Response(200, text="<html>"), None),
        (httpx.Response(503), None),
        (httpx.ConnectError("refused"), None),
    ],
    ids=["heartbeat", "none yet", "another page", "no JSON", "unavailable", "unreachable"],
)
def test_health_page_says_when_the_scheduler_reported_or_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: httpx.Response | Exception, heartbeat: datetime | None
) -> None:
    def get(url: str, **options: Any) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        answer.request = httpx.Request("GET", url)
        return answer

    monkeypatch.setattr(httpx, "get", get)
    assert scheduler_heartbeat() == heartbeat


@pytest.mark.parametrize(
    ("executor", "airflow", "needed"),
    [
        ("LocalExecutor", "3.1.8", True),
        ("LocalExecutor", "3.3.2", True),
        ("my.company.Executor", "3.3.2", True),
        ("CeleryExecutor", "3.2.1", True),
        ("CeleryExecutor", "3.2.2", False),
        ("CeleryExecutor", "3.3.0rc1", False),
        ("airflow.providers.celery.executors.celery_executor.CeleryExecutor", "3.3.2", False),
    ],
)
def test_executors_that_are_immune_need_no_hold(executor: str, airflow: str, needed: bool) -> None:
    assert is_hold_needed(executor, airflow) is needed


def test_release_that_is_immune_needs_no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "IMMUNE_FROM", Version("3.9"))
    assert is_hold_needed("LocalExecutor", "3.8.4")
    assert not is_hold_needed("LocalExecutor", "3.9.0.dev0")


@pytest.mark.parametrize(
    ("setting", "executor"),
    [
        ("LocalExecutor", "LocalExecutor"),
        ("CeleryExecutor,LocalExecutor", "CeleryExecutor"),
        ("LocalExecutor;team1=CeleryExecutor", "LocalExecutor"),
        ("my.company.Executor:Mine", "my.company.Executor"),
    ],
)
def test_default_executor_is_the_first(setting: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", setting)
    assert default_executor() == executor


@pytest.mark.parametrize("executor", [None, "CeleryExecutor"])
def test_only_a_task_that_can_be_hurt_carries_its_deferral(executor: str | None) -> None:
    trigger = mark_deferral(SimpleNamespace(deferred_at=None), executor)
    is_immune = executor == "CeleryExecutor" and Version(airflow_version) >= Version("3.2.2")
    assert (trigger.deferred_at is None) is is_immune
