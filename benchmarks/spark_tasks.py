"""The job of the benchmark: as a task, as a function, and as a script for ``python`` and ``spark-submit``."""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 1_000_000


def count_and_aggregate(spark: SparkSession) -> int:
    numbers = spark.range(ROWS).withColumn("bucket", sf.col("id") % 10)
    sums = numbers.groupBy("bucket").agg(sf.sum("id").alias("total")).collect()
    return int(numbers.count() + sum(row["total"] for row in sums))


def print_lines(lines: int) -> float:
    begun = time.perf_counter()
    for number in range(lines):
        print("line number", number, "of a task that has much to say")
    sys.stdout.flush()
    return time.perf_counter() - begun


if __name__ == "__main__":
    session = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    print(count_and_aggregate(session))
    session.stop()
else:
    from horsies import TaskError, TaskResult

    from airflow_horsies.worker import horsies_app, python_task, spark_task

    app = horsies_app()

    @spark_task(app, "bench.job")
    def job(spark: SparkSession) -> dict[str, float]:
        begun = time.perf_counter()
        result = count_and_aggregate(spark)
        return {"result": result, "seconds": time.perf_counter() - begun}

    @python_task(app, "bench.lines")
    def lines(*, number: int) -> float:
        return print_lines(number)

    @app.task("bench.lines_without_us")
    def lines_without_us(*, number: int) -> TaskResult[float, TaskError]:
        return TaskResult(ok=print_lines(number))
