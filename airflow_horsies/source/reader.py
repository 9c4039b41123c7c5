"""A batch read: planned in one process of the driver, done in many of the executors."""

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
from airflow_horsies.source.keeper import SEEN_SECONDS, Kept, keep
from airflow_horsies.source.options import Options
from airflow_horsies.source.planning import cut
from airflow_horsies.source.reading import read_batches
from airflow_horsies.source.scanning import copy_out, scan
from airflow_horsies.source.snapshots import read_snapshots
from airflow_horsies.source.tables import Column, spark_schema

SNAPSHOT_GONE = (
    "the state of the database that this DataFrame was planned on is no longer kept. Make the DataFrame again, from "
    "load() on, to read the present one; cache() it to use it more than once; or keep the state longer with "
    "option('snapshotSeconds', ...)"
)


@dataclass(frozen=True)
class Part(InputPartition):
    """What one Spark task reads."""

    number: int
    slice: Slice
    kept: Kept | None


class BatchReader(DataSourceReader):
    """Holds options, never a connection or a way to log in: it travels to the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options, schema)
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        database = find_database(options.service)
        whole = narrowed(Slice(since=options.since, until=options.until), self._filters, options.table)
        # What is wrong with the database is told here, once, and not by each of the tasks.
        with database.translated(), open_reading(database) as connection:
            run(connection, scan(options.table, whole))
            slices = run(connection, cut(options.table, whole, options.partitions))
        kept = None
        if len(slices) > 1:
            kept = keep(service=options.service, parts=len(slices), snapshot_seconds=options.snapshot_seconds)
        return [Part(number, each, kept) for number, each in enumerate(slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)  # noqa: S101
        database = find_database(self._options.service)
        begun = time.monotonic()
        with database.translated(), open_reading(database) as connection:
            if partition.kept is not None:
                _share(connection, partition.kept, partition.number)
            found = run(connection, scan(self._options.table, partition.slice, filtered=bool(self._filters)))
            run(connection, format_for_copy())
            conditions = self._conditions()
            for rows in found.rows:
                query = copy_out(rows, self._columns, conditions.all)
                yield from read_batches(connection, query, {**rows.params, **conditions.params}, self._columns)
            if found.snapshots is not None:
                yield from read_snapshots(connection, found.snapshots, self._columns, partition.slice)
            if partition.kept is not None:
                # The keeper learns by looking that a part is read, and lets go when all were.
                time.sleep(max(0.0, begun + SEEN_SECONDS - time.monotonic()))

    def _conditions(self) -> Conditions:
        conditions = Conditions(self._options.table.columns)
        for each in self._filters:
            conditions.add(each)
        return conditions


class FilteringReader(BatchReader):
    """Has Postgres evaluate what it can of a query's conditions."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        conditions = Conditions(self._options.table.columns)
        for each in filters:
            if conditions.add(each):
                self._filters.append(each)
            else:
                yield each


def _share(connection: psycopg.Connection[Any], kept: Kept, number: int) -> None:
    """See what the planner saw, and show that this part is at work."""
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(kept.snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise SnapshotGone(SNAPSHOT_GONE) from None
    run(connection, lock_part(kept.read_key, number))


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
