"""The lake: tables of Parquet below the folder ``FLIGHTS_LAKE``, in partitions that are replaced at once."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

# Parquet lists the encodings of a column in an order that differs between JVMs; so each column has only one.
SAME_BYTES = {"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"}


def lake() -> Path:
    return Path(os.environ["FLIGHTS_LAKE"])


def partition(table: str, **keys: object) -> Path:
    """``raw/date=2013-01-01/part.parquet``: a partition is one file, as one file can be replaced at once."""
    return lake().joinpath(table, *(f"{name}={value}" for name, value in keys.items()), "part.parquet")


def read(spark: SparkSession, *partitions: Path, table: str | None = None) -> DataFrame:
    """Rows of some partitions; with the table's name, their keys become columns."""
    reader = spark.read if table is None else spark.read.option("basePath", str(lake() / table))
    # They are small, and in one piece they are grouped and joined without a shuffle.
    return reader.parquet(*map(str, partitions)).coalesce(1)


def count_rows(place: Path) -> int:
    """From the file's footer, without a job of Spark."""
    return int(parquet.read_metadata(place).num_rows)


def count_values(place: Path, column: str) -> dict[str, int]:
    """How often each value of a column is there."""
    return dict(sorted(Counter(parquet.read_table(place, columns=[column])[column].to_pylist()).items()))


def publish(frame: DataFrame, place: Path, *, order_by: list[str]) -> int:
    """Replace a partition: who reads it finds all of the old rows or all of the new; returns how many these are."""
    # Outside the tables, where no reader looks. What an attempt left here that was killed goes with the next one.
    staging = lake() / "staging" / ".".join(place.parent.relative_to(lake()).parts)
    shutil.rmtree(staging, ignore_errors=True)
    written = staging / uuid.uuid4().hex
    # One file, in an order that leaves no choice: the same rows give the same bytes.
    frame.coalesce(1).sortWithinPartitions(*order_by).write.options(**SAME_BYTES).parquet(str(written))
    (file,) = written.glob("part-*.parquet")
    rows = count_rows(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    file.replace(place)
    shutil.rmtree(staging, ignore_errors=True)
    return rows


def publish_json(value: dict[str, Any], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}")
    unfinished.write_text(json.dumps(value, indent=2) + "\n")
    unfinished.replace(place)
