"""The functions of the example pipeline, called without horsies: with a Spark session and a lake of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.worker import TaskFault

AIRPORTS = ("EWR", "JFK", "LGA")


class Pipeline:
    """The tasks of the pipeline as plain functions."""

    def __init__(self, spark: SparkSession, lake: Path, tasks: ModuleType) -> None:
        self.spark, self.lake, self.tasks = spark, lake, tasks

    def run_day(self, day: date) -> dict[str, Any]:
        """What each task of the day returned."""
        told = {name: self.call(name, day=day) for name in ("ingest", "validate", "enrich")}
        return told | {airport: self.call("marts", day=day, origin=airport) for airport in AIRPORTS}

    def call(self, name: str, **given: Any) -> Any:
        """What a task returned, at the second attempt where the first met the outage of the weather service."""
        try:
            return getattr(self.tasks, name)(self.spark, **given)
        except TaskFault as fault:
            if fault.code != "WEATHER_UNAVAILABLE":
                raise
            return getattr(self.tasks, name)(self.spark, **given)

    def read(self, table: str) -> pd.DataFrame:
        return pd.read_parquet(self.lake / table).astype({"origin": "str"})

    def files(self) -> dict[str, bytes]:
        return files_of(self.lake)


def files_of(lake: Path) -> dict[str, bytes]:
    """All that the tasks have written; what was delivered to them is left out."""
    names = (path.relative_to(lake) for path in sorted(lake.rglob("*")) if path.is_file())
    return {str(name): (lake / name).read_bytes() for name in names if not name.parts[0].startswith("landing")}


@contextmanager
def open_pipeline(folder: Path) -> Iterator[Pipeline]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "FLIGHTS_LAKE": str(folder / "lake"),
            # Importing the tasks makes their app, which connects to nothing.
            "HORSIES_DATABASE_URL": "postgresql://nobody@localhost/nothing",
            "JAVA_HOME": str(find_java_home(folder / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
        }.items():
            patch.setenv(name, value)
        sample_tasks, tasks = (import_module(name) for name in ("airflow_horsies.worker.sample_tasks", "flights.tasks"))
        settings = {
            **sample_tasks.SMALL_DATA,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        gateway = spark.sparkContext._gateway
        try:
            yield Pipeline(spark, folder / "lake", tasks)
        finally:
            spark.stop()
            # The JVM would stay as long as this process.
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)
            SparkContext._gateway = SparkContext._jvm = None
