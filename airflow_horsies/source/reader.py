"""A batch read: planned in one process of the driver, run in many processes of the executors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from airflow_horsies.client.scanning import format_for_copy, lock_part
from airflow_horsies.core.paging import Slice
from airflow_horsies.db.driver import run
from airflow_horsies.exceptions import SnapshotGone, SourceError
from airflow_horsies.source.connecting import find_database, open_reading
from airflow_horsies.source.filters import Conditions, narrowed
from airflow_horsies.source.keeper import MIN_LOCK_SECONDS, SharedSnapshot, start_keeper
from airflow_horsies.source.options import Options
from airflow_horsies.source.planning import cut
from airflow_horsies.source.reading import read_batches
from airflow_horsies.source.scanning import copy_out, scan
from airflow_horsies.source.snapshots import read_snapshots
from airflow_horsies.source.tables import Column, spark_schema

SNAPSHOT_GONE = (
    "The database snapshot of this DataFrame is no longer available. Call load() again to read the current data, "
    "cache() the DataFrame to use it more than once, or keep the snapshot longer with option('snapshotSeconds', ...)."
)


@dataclass(frozen=True)
class Part(InputPartition):
    """The part of a table that one Spark task reads."""

    number: int
    slice: Slice
    snapshot: SharedSnapshot | None


class BatchReader(DataSourceReader):
    """Contains options, but no connection and no credentials, as it is sent to the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options, schema)
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        database = find_database(options.service)
        whole = narrowed(Slice(since=options.since, until=options.until), self._filters, options.table)
        # Problems with the database are reported here once, and not by every task.
        with database.translated(), open_reading(database) as connection:
            run(connection, scan(options.table, whole))
            slices = run(connection, cut(options.table, whole, options.partitions))
        snapshot = None
        if len(slices) > 1:
            snapshot = start_keeper(
                service=options.service, parts=len(slices), snapshot_seconds=options.snapshot_seconds
            )
        return [Part(number, part, snapshot) for number, part in enumerate(slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)  # noqa: S101
        database = find_database(self._options.service)
        begun = time.monotonic()
        with database.translated(), open_reading(database) as connection:
            if partition.snapshot is not None:
                _join_snapshot(connection, partition.snapshot, partition.number)
            found = run(connection, scan(self._options.table, partition.slice, filtered=bool(self._filters)))
            run(connection, format_for_copy())
            conditions = self._conditions()
            for rows in found.rows:
                query = copy_out(rows, self._columns, conditions.all)
                yield from read_batches(connection, query, {**rows.params, **conditions.params}, self._columns)
            if found.snapshots is not None:
                yield from read_snapshots(connection, found.snapshots, self._columns, partition.slice)
            if partition.snapshot is not None:
                # The keeper polls for parts that are being read, and ends after all of them.
                time.sleep(max(0.0, begun + MIN_LOCK_SECONDS - time.monotonic()))

    def _conditions(self) -> Conditions:
        conditions = Conditions(self._options.table.columns)
        for pushed in self._filters:
            conditions.add(pushed)
        return conditions


class FilteringReader(BatchReader):
    """Lets Postgres evaluate the filters of a query that it can."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        conditions = Conditions(self._options.table.columns)
        for pushed in filters:
            if conditions.add(pushed):
                self._filters.append(pushed)
            else:
                yield pushed


def _join_snapshot(connection: psycopg.Connection[Any], snapshot: SharedSnapshot, number: int) -> None:
    """Use the snapshot of the planner, and lock the key that shows that this part is being read."""
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise SnapshotGone(SNAPSHOT_GONE) from None
    run(connection, lock_part(snapshot.read_key, number))


def columns_of(options: Options, schema: StructType) -> tuple[Column, ...]:
    """The columns of a schema, which is ours or the author's ``.schema(...)``."""
    columns = options.table.select(schema.fieldNames())
    for field, wanted in zip(schema.fields, spark_schema(columns).fields, strict=True):
        if field.dataType != wanted.dataType:
            raise SourceError(
                f"Column {field.name} of {options.table.name} has the type {wanted.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}. Omit .schema(...), or cast the column afterwards."
            )
    return columns
