"""Run by test_embedded_spark in a process of its own: prints the sums of squares by remainder, as JSON."""

from __future__ import annotations

import json
import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, pandas_udf
from pyspark.sql.types import LongType


def main(url: str, rows: int) -> None:
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2")
    if url.startswith("sc://"):
        spark = builder.remote(url).create()
    else:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
        }
        spark = builder.master(url).config(map=settings).getOrCreate()

    # Only now: a function made before the session is none for Spark Connect.
    @pandas_udf(LongType())
    def square(values: pd.Series) -> pd.Series:
        return values * values

    squares = spark.range(rows).select((col("id") % 3).alias("remainder"), square("id").alias("square"))
    sums = squares.groupBy("remainder").sum("square").orderBy("remainder").collect()
    print(json.dumps([row[1] for row in sums]), flush=True)
    # The session, and with it the executors, stays until the test is done with it.
    if sys.stdin.readline():
        print(spark.range(rows).count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
