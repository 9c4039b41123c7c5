from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("horsies")

from horsies import Horsies, QueueMode

from airflow_horsies.worker import app as app_module
from airflow_horsies.worker.app import horsies_app
from airflow_horsies.worker.settings import Queue, SettingsError, WorkerSettings
from airflow_horsies.worker.tasks import python_task, spark_task

SECRET = "s3cret-word"
URL = f"postgresql+psycopg://worker:{SECRET}@pooler:6432/horsies"
DIRECT = f"postgresql+psycopg://worker:{SECRET}@db:5432/horsies"


@pytest.fixture(autouse=True)
def _no_settings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HORSIES_")]:
        monkeypatch.delenv(name)


def test_an_app_serves_the_default_queue_unless_it_is_told_otherwise() -> None:
    config = horsies_app(URL).config
    assert (config.queue_mode, config.custom_queues) == (QueueMode.DEFAULT, None)


def test_an_app_serves_the_queues_it_is_given() -> None:
    config = horsies_app(URL, queues=["fast:1:4", Queue("slow", priority=50), "rest"]).config
    assert config.queue_mode is QueueMode.CUSTOM
    assert [(queue.name, queue.priority, queue.max_concurrency) for queue in config.custom_queues or []] == [
        ("fast", 1, 4),
        ("slow", 50, None),
        ("rest", 100, None),
    ]


def test_an_app_serves_the_queue_it_is_given_as_text() -> None:
    config = horsies_app(URL, queues="spark").config
    assert [(queue.name, queue.priority) for queue in config.custom_queues or []] == [("spark", 100)]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", URL)
    monkeypatch.setenv("HORSIES_QUEUES", "fast:1")
    monkeypatch.setenv("HORSIES_DEAD_AFTER_SECONDS", "60")
    monkeypatch.setenv("HORSIES_RESULT_BYTES", "5000")
    app = horsies_app()
    assert [queue.name for queue in app.config.custom_queues or []] == ["fast"]
    assert app.config.recovery.running_stale_threshold_ms == 60_000
    assert app.config.broker.database_url.get_secret_value() == URL
    assert app.airflow_horsies_result_bytes == 5_000  # type: ignore[attr-defined]


def test_an_app_without_a_database_is_told_what_to_set() -> None:
    with pytest.raises(SettingsError, match="HORSIES_DATABASE_URL"):
        horsies_app()


@pytest.mark.parametrize(
    ("dead_after_seconds", "beat_ms"), [(5, 1_250), (10, 2_500), (60, 5_000), (120, 5_000), (3_600, 5_000)]
)
def test_a_heart_beats_several_times_before_a_worker_counts_as_dead(dead_after_seconds: int, beat_ms: int) -> None:
    recovery = horsies_app(URL, dead_after=timedelta(seconds=dead_after_seconds)).config.recovery
    assert recovery.running_stale_threshold_ms == recovery.claimed_stale_threshold_ms == dead_after_seconds * 1_000
    assert recovery.runner_heartbeat_interval_ms == recovery.claimer_heartbeat_interval_ms == beat_ms
    assert recovery.check_interval_ms == beat_ms
    assert recovery.worker_state_snapshot_interval_ms <= 5_000


def test_a_worker_counts_as_dead_after_two_minutes_by_default() -> None:
    assert horsies_app(URL).config.recovery.running_stale_threshold_ms == 120_000


def test_a_direct_way_past_the_pooler_is_used_for_what_needs_a_session() -> None:
    broker = horsies_app(URL, direct_database_url=DIRECT).config.broker
    assert broker.database_url.get_secret_value() == URL
    assert broker.session_database_url is not None
    assert broker.session_database_url.get_secret_value() == DIRECT
    assert broker.pgbouncer_transaction_mode


def test_without_a_direct_way_there_is_no_pooler() -> None:
    broker = horsies_app(URL).config.broker
    assert broker.session_database_url is None
    assert not broker.pgbouncer_transaction_mode


def test_anything_else_goes_to_horsies_own_configuration() -> None:
    config = horsies_app(URL, cluster_wide_cap=3, default_unhandled_error_code="MY_CODE").config
    assert (config.cluster_wide_cap, config.default_unhandled_error_code) == (3, "MY_CODE")


def test_no_secret_is_in_the_repr() -> None:
    app = horsies_app(URL, direct_database_url=DIRECT, spark_conf={"spark.ssl.keyPassword": SECRET})
    assert SECRET not in f"{app!r} {app.config!r} {app.config}"


def test_making_an_app_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "start_child", pytest.fail)
    assert isinstance(horsies_app(URL), Horsies)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[WorkerSettings, bool]]:
    """The children that were started, in place of real ones."""
    started: list[tuple[WorkerSettings, bool]] = []

    def start_child(settings: WorkerSettings, *, uses_spark: bool, **_: Any) -> None:
        started.append((settings, uses_spark))

    monkeypatch.setattr(app_module, "start_child", start_child)
    return started


def start(app: Horsies) -> None:
    for hook in app.get_child_process_start_hooks():
        hook()


def test_a_child_is_started_with_the_settings_and_with_spark_only_where_a_task_wants_it(
    started: list[tuple[WorkerSettings, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["horsies", "worker", "--max-tasks-per-child=1000000"])
    plain = horsies_app(URL, spark_master="local[2]")
    python_task(plain, "plain")(lambda: None)
    sparkling = horsies_app(URL)

    @spark_task(sparkling, "sparkling")
    def sparkling_task(spark: Any) -> None: ...

    start(plain)
    start(sparkling)
    assert [uses_spark for _, uses_spark in started] == [False, True]
    assert (started[0][0].database_url, started[0][0].spark.master) == (URL, "local[2]")


@pytest.mark.parametrize(
    ("argv", "warned"),
    [
        (["horsies", "worker", "my_tasks:app"], True),
        (["horsies", "worker", "my_tasks:app", "--max-tasks-per-child", "50"], False),
        (["horsies", "worker", "my_tasks:app", "--max-tasks-per-child=50"], False),
    ],
)
@pytest.mark.usefixtures("started")
def test_a_worker_that_would_throw_its_warm_session_away_is_warned(
    argv: list[str], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    app = horsies_app(URL)

    @spark_task(app, "sparkling")
    def sparkling_task(spark: Any) -> None: ...

    start(app)
    assert ("python -m airflow_horsies.worker" in caplog.text) is warned
