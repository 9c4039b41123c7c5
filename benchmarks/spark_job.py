"""The job of the benchmark: a function, and a script for ``python`` and ``spark-submit``."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

ROWS = 1_000_000


def count_and_aggregate(spark: SparkSession) -> int:
    numbers = spark.range(ROWS).withColumn("bucket", sf.col("id") % 10)
    sums = numbers.groupBy("bucket").agg(sf.sum("id").alias("total")).collect()
    return int(numbers.count() + sum(row["total"] for row in sums))


if __name__ == "__main__":
    session = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    print(count_and_aggregate(session))
    session.stop()
