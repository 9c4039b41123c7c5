from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("horsies")

from horsies import AppConfig, Horsies, RecoveryConfig

from airflow_horsies.borrowed import horsies as borrowed
from airflow_horsies.worker.app import horsies_app
from airflow_horsies.worker.defaults import MAX_PROCESSES, PREFETCHING, processes_of
from airflow_horsies.worker.tasks import python_task, spark_task

URL = "postgresql+psycopg://worker:s3cret-word@db/horsies"


@pytest.fixture(autouse=True)
def _no_settings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HORSIES_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def _own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when ``python -m airflow_horsies.worker`` loads the app."""
    monkeypatch.setattr(borrowed.cli, "Worker", borrowed.PacedWorker)


def checked(*, with_spark: bool = False, **given: Any) -> Horsies:
    """An app as a worker has it when it reads its settings."""
    app = horsies_app(URL, **given)
    queue = {"queue_name": "fast"} if "queues" in given else {}
    python_task(app, "plain", **queue)(lambda: None)
    if with_spark:

        @spark_task(app, "sparkling", **queue)
        def sparkling(spark: Any) -> None: ...

    assert app.check() == []
    return app


def claims(app: Horsies) -> tuple[int, int | None, int]:
    config = app.config
    return config.prefetch_buffer, config.claim_lease_ms, config.max_claim_renew_age_ms


@pytest.mark.usefixtures("_own_command")
def test_an_app_without_spark_prefetches() -> None:
    assert claims(checked()) == claims(checked(queues=["fast:1"])) == tuple(PREFETCHING.values())
    config = checked(dead_after=timedelta(minutes=5)).config
    assert AppConfig.model_validate(config.model_dump()) == config, "horsies accepts the lease"


def test_an_app_does_not_prefetch_with_the_command_of_horsies() -> None:
    """Its workers would claim ahead behind long tasks, too."""
    assert claims(checked()) == (0, 20_000, 60_000)


@pytest.mark.usefixtures("_own_command")
def test_an_app_with_spark_does_not_prefetch() -> None:
    assert claims(checked(with_spark=True)) == (0, 20_000, 60_000)


@pytest.mark.parametrize(
    "given",
    [
        {"prefetch_buffer": 0},
        {"claim_lease_ms": 30_000},
        {"max_claim_renew_age_ms": 90_000},
        {"recovery": RecoveryConfig()},
        {"cluster_wide_cap": 3},
        {"queues": ["fast:1:4"]},
    ],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.usefixtures("_own_command")
def test_prefetching_is_off_where_the_settings_say_otherwise_or_limit_running_tasks(given: dict[str, Any]) -> None:
    assert checked(**given).config.prefetch_buffer == 0


@pytest.mark.usefixtures("_own_command")
def test_a_given_buffer_is_kept() -> None:
    assert claims(checked(prefetch_buffer=9, claim_lease_ms=30_000))[:2] == (9, 30_000)


@pytest.mark.parametrize("dead_after_seconds", [5, 120])
def test_horsies_accepts_the_settings_of_claims(dead_after_seconds: int) -> None:
    from datetime import timedelta

    config = checked(dead_after=timedelta(seconds=dead_after_seconds)).config
    AppConfig(**{name: getattr(config, name) for name in AppConfig.model_fields})


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (64, MAX_PROCESSES)])
def test_an_app_without_spark_has_a_child_for_each_core(
    cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert (processes_of(checked()), processes_of(checked(with_spark=True))) == (processes, 1)
