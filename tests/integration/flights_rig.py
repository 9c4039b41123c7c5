"""The functions of the example pipeline, called without horsies: with a Spark session and a lake of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from airflow_horsies.worker import TaskFault
from tests.integration.spark_session import open_spark

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
        patch.setenv("FLIGHTS_LAKE", str(folder / "lake"))
        # Importing the tasks makes their app, which connects to nothing.
        patch.setenv("HORSIES_DATABASE_URL", "postgresql://nobody@localhost/nothing")
        sample_tasks, tasks = (import_module(name) for name in ("airflow_horsies.worker.sample_tasks", "flights.tasks"))
        with open_spark(folder, settings=sample_tasks.SMALL_DATA) as spark:
            yield Pipeline(spark, folder / "lake", tasks)
