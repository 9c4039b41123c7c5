"""The job of the benchmark as a task, and tasks that print."""

from __future__ import annotations

import sys
import time

from horsies import TaskError, TaskResult
from pyspark.sql import SparkSession
from spark_job import count_and_aggregate

from airflow_horsies.worker import horsies_app, python_task, spark_task

app = horsies_app()


def print_lines(lines: int) -> float:
    begun = time.perf_counter()
    for number in range(lines):
        print("line number", number, "of a task that has much to say")
    sys.stdout.flush()
    return time.perf_counter() - begun


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
