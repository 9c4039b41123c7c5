"""A Spark session in the test's process, whose JVM ends with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.process import LOOPBACK


def spark_environ(folder: Path) -> dict[str, str]:
    """What a driver needs in its environment."""
    return {
        "JAVA_HOME": str(find_java_home(folder / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
    }


@contextmanager
def open_spark(
    folder: Path, environ: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Its JVM, and the processes of Python it starts, see the given environment; the test's own stays as it is."""
    all_settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(settings or {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**spark_environ(folder), **(environ or {})}.items():
            patch.setenv(name, value)
        spark = SparkSession.builder.master("local[2]").config(map=all_settings).getOrCreate()
    gateway = spark.sparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        # The JVM would stay as long as this process.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
