"""A few small tasks, one of them PySpark, for the demo and the tests.

Start a worker for them with ``python -m airflow_horsies.worker airflow_horsies.worker.sample_tasks:app``.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import SparkSession

from airflow_horsies.worker import TaskFault, horsies_app, python_task, spark_task

# For small data, compiling a query takes longer than running it.
SMALL_DATA = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
# A dead worker is detected within seconds. Use the default in a real deployment.
app = horsies_app(dead_after=timedelta(seconds=10), spark_conf=SMALL_DATA)

_tried: set[str] = set()


@python_task(app, "sample.add")
def add(*, a: int, b: int) -> int:
    return a + b


@python_task(app, "sample.fail_once")
def fail_once(*, key: str) -> str:
    """Fails the first time it gets a key. The only child of the worker remembers the keys."""
    if key not in _tried:
        _tried.add(key)
        raise TaskFault("TRY_AGAIN", "The first attempt always fails.")
    return "healed by a retry"


@python_task(app, "sample.fail_always")
def fail_always(*, reason: str) -> None:
    raise RuntimeError(reason)


@spark_task(app, "sample.count_by_remainder")
def count_by_remainder(spark: SparkSession, *, rows: int, divisor: int) -> dict[str, int]:
    """Count the numbers below ``rows`` by remainder."""
    numbers = spark.range(rows)
    counted = numbers.groupBy((numbers.id % divisor).alias("remainder")).count().orderBy("remainder")
    return {str(row["remainder"]): int(row["count"]) for row in counted.collect()}
