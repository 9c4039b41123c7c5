"""A horsies app with a few small tasks, one of them PySpark, for the demo and the tests.

Start it with ``horsies worker airflow_horsies.worker.sample_tasks:app --processes 1``.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from horsies import AppConfig, Horsies, PostgresConfig, RecoveryConfig, TaskError, TaskResult
from pydantic import SecretStr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url=SecretStr(os.environ["HORSIES_DATABASE_URL"])),
        # A dead worker is noticed within seconds; a real deployment keeps the calmer defaults.
        recovery=RecoveryConfig(
            runner_heartbeat_interval_ms=1_000,
            claimer_heartbeat_interval_ms=1_000,
            running_stale_threshold_ms=10_000,
            claimed_stale_threshold_ms=10_000,
            check_interval_ms=1_000,
            worker_state_snapshot_interval_ms=5_000,
        ),
    )
)

_tried: set[str] = set()


@app.task("sample.add")
def add(*, a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("sample.fail_once")
def fail_once(*, key: str) -> TaskResult[str, TaskError]:
    """Fails the first time it sees a key; the one child of the worker remembers which it has seen."""
    if key not in _tried:
        _tried.add(key)
        return TaskResult(err=TaskError(error_code="TRY_AGAIN", message="the first attempt always fails"))
    return TaskResult(ok="healed by a retry")


@app.task("sample.fail_always")
def fail_always(*, reason: str) -> TaskResult[None, TaskError]:
    raise RuntimeError(reason)


@app.task("sample.count_by_remainder")
def count_by_remainder(*, rows: int, divisor: int) -> TaskResult[dict[str, int], TaskError]:
    """A small Spark aggregation: how many of the numbers below ``rows`` leave which remainder."""
    numbers = spark_session().range(rows)
    counted = numbers.groupBy((numbers.id % divisor).alias("remainder")).count().orderBy("remainder")
    return TaskResult(ok={str(row["remainder"]): int(row["count"]) for row in counted.collect()})


@cache
def spark_session() -> SparkSession:
    """The one session of this worker process, made on first use; it takes several seconds."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[*]")
        .appName("airflow-horsies sample")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
