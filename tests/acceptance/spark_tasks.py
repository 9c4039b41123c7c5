"""A task for workers whose Spark runs elsewhere."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType

from airflow_horsies.worker import horsies_app, spark_task

app = horsies_app(dead_after=timedelta(seconds=10))


@spark_task(app, "acceptance.delays_by_origin")
def delays_by_origin(spark: SparkSession, *, path: str) -> dict[str, list[float]]:
    """Flights and mean delay, in hours, of each origin."""

    def to_hours(minutes: pd.Series) -> pd.Series:
        return minutes / 60.0

    hours = sf.pandas_udf(to_hours, DoubleType())
    flights = spark.read.parquet(path)
    print(f"{flights.count()} flights")
    delays = flights.withColumn("hours", hours("delay")).groupBy("origin")
    rows = delays.agg(sf.count("*").alias("flights"), sf.avg("hours").alias("mean")).collect()
    return {row["origin"]: [row["flights"], round(row["mean"], 6)] for row in rows}
