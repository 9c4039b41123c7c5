"""An app of one task, which uses Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_horsies.worker import horsies_app, spark_task

app = horsies_app(dead_after=timedelta(seconds=5))


@spark_task(app, "spark.only")
def only(spark: Any) -> int:
    return int(spark.range(3).count())
