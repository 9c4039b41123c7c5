"""The job of the benchmark as a task, and tasks that print."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from airflow_horsies.worker import horsies_app, python_task, spark_task
from benchmarks.printing import print_lines
from benchmarks.spark_job import count_and_aggregate

app = horsies_app()


@spark_task(app, "bench.job")
def job(spark: SparkSession) -> dict[str, float]:
    begun = time.perf_counter()
    result = count_and_aggregate(spark)
    return {"result": result, "seconds": time.perf_counter() - begun}


@python_task(app, "bench.lines")
def lines(*, number: int, work: int) -> float:
    return print_lines(number, work)
