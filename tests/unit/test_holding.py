"""A task does not resume before Airflow's scheduler has heard that its earlier process ended."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from packaging.version import Version

from airflow_horsies import holding
from airflow_horsies.holding import (
    LONGEST_HOLD_SECONDS,
    SCHEDULER_SECONDS,
    default_executor,
    earliest_reschedule,
    hold,
    is_hold_needed,
    mark_deferral,
    resume_after,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTING = "AIRFLOW__HORSIES__RESUME_HOLD_SECONDS"
NOTICE = "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"


def held_after(lateness: float) -> float:
    return (resume_after(NOW, NOW + timedelta(seconds=lateness)) - NOW).total_seconds()


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def hold_for(deferred_at: str | None) -> float:
    return asyncio.run(hold(deferred_at, datetime.now(UTC)))


def test_hold_outlasts_the_notice_of_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE, "7")
    assert held_after(0) == 7 + SCHEDULER_SECONDS


def test_trigger_that_starts_late_holds_longer() -> None:
    assert held_after(0) < held_after(1) < held_after(4)


def test_hold_has_a_bound() -> None:
    assert held_after(600) == LONGEST_HOLD_SECONDS


def test_setting_decides_where_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "3.5")
    assert held_after(10) == 3.5
    assert timedelta(seconds=3) < earliest_reschedule() - datetime.now(UTC) <= timedelta(seconds=3.5)


def test_setting_of_zero_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    assert hold_for(ago(0)) == 0


def test_deferral_of_an_older_release_is_not_held() -> None:
    assert hold_for(None) == 0


def test_task_that_deferred_long_ago_is_not_held() -> None:
    assert hold_for(ago(LONGEST_HOLD_SECONDS)) == 0


def test_task_that_deferred_just_now_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0.3")
    begun = time.monotonic()
    said = hold_for(ago(0))
    assert 0.2 < said <= time.monotonic() - begun


def test_clock_that_runs_ahead_does_not_lengthen_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LONGEST_HOLD_SECONDS", 0.2)
    begun = time.monotonic()
    hold_for(ago(-3600))
    assert time.monotonic() - begun < 60


def test_sensor_that_reschedules_itself_stays_away_for_longer_than_a_notice() -> None:
    assert earliest_reschedule() - datetime.now(UTC) > timedelta(seconds=5)


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


@pytest.mark.parametrize(("executor", "is_marked"), [(None, True), ("CeleryExecutor", False)])
def test_only_a_task_that_can_be_hurt_carries_its_deferral(executor: str | None, is_marked: bool) -> None:
    trigger = mark_deferral(SimpleNamespace(deferred_at=None), executor)
    assert (trigger.deferred_at is not None) is is_marked
