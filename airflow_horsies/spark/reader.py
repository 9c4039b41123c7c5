"""A batch read: planned in one process of the driver, done in many of the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_horsies.database import Database, run
from airflow_horsies.exceptions import SourceError
from airflow_horsies.models import Slice
from airflow_horsies.spark.connecting import find_database
from airflow_horsies.spark.options import Options
from airflow_horsies.spark.reading import read_batches
from airflow_horsies.spark.scanning import copy_out, scan
from airflow_horsies.spark.tables import Column, spark_schema
from airflow_horsies.wire.checks import format_for_copy

NO_CONDITION = sql.SQL("TRUE")


@dataclass(frozen=True)
class Part(InputPartition):
    """What one Spark task reads."""

    slice: Slice


class BatchReader(DataSourceReader):
    """Holds options, never a connection or a way to log in: it travels to the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        database = find_database(options.service)
        whole = Slice(since=options.since, until=options.until)
        # What is wrong with the database is told here, once, and not by each of the tasks.
        with open_reading(database) as connection, database.translated():
            run(connection, scan(options.table, whole))
        return [Part(whole)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)  # noqa: S101
        database = find_database(self._options.service)
        with database.translated(), open_reading(database) as connection:
            rows = run(connection, scan(self._options.table, partition.slice))
            run(connection, format_for_copy())
            yield from read_batches(connection, copy_out(rows, self._columns, NO_CONDITION), rows.params, self._columns)


def open_reading(database: Database) -> psycopg.Connection[Any]:
    """A connection whose transactions see one state of the database, and change nothing."""
    connection: psycopg.Connection[Any] = database.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


def columns_of(options: Options, schema: StructType) -> tuple[Column, ...]:
    """The columns of a schema, which is ours or the one an author gave with ``.schema(...)``."""
    columns = options.table.select(schema.fieldNames())
    for field, wanted in zip(schema.fields, spark_schema(columns).fields, strict=True):
        if field.dataType != wanted.dataType:
            raise SourceError(
                f"the column {field.name} of {options.table.name} is {wanted.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; leave .schema(...) out, or cast afterwards"
            )
    return columns
