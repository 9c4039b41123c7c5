"""A stream of final attempts. Its offsets are transaction ids and not times, because rows do not become visible in the
order of their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_horsies.client.scanning import find_wire, format_for_copy, read_horizon
from airflow_horsies.db.driver import run
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import SourceError
from airflow_horsies.source.connecting import find_database, open_reading
from airflow_horsies.source.options import StreamOptions
from airflow_horsies.source.reader import columns_of
from airflow_horsies.source.reading import read_batches
from airflow_horsies.source.scanning import copy_out

RESTORED = (
    "The checkpoint is ahead of the database (transaction {start}, database {now}). It belongs to another database, or "
    "the database was restored from a dump. Start with a new checkpoint."
)


@dataclass(frozen=True, slots=True)
class Offset:
    """All earlier transactions have been read. Later ones wrote nothing that is more than an hour older than ``at``."""

    transaction: int
    at: datetime | None

    def as_json(self) -> dict[str, Any]:
        return {"transaction": self.transaction, "at": self.at.isoformat() if self.at else ""}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Offset:
        return cls(int(values["transaction"]), datetime.fromisoformat(values["at"]) if values["at"] else None)


@dataclass(frozen=True)
class Span(InputPartition):
    """The rows that were written between two offsets."""

    start: Offset
    end: Offset


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Contains options, but no connection and no credentials."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options.read, schema)
        self._target: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._options.starts_at_earliest:
            return Offset(0, None).as_json()
        return self._horizon().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._horizon()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._horizon().as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Offset.from_json(start)
        end = self._horizon()
        if begin.transaction > end.transaction:
            raise SourceError(RESTORED.format(start=begin.transaction, now=end.transaction))
        if self._target is not None and self._target.transaction < end.transaction:
            end = self._target
        if end.transaction <= begin.transaction:
            return start
        rows = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._options.max_rows)
        with self._connected() as connection:
            found = run(connection, self._find_end(begin, end, rows))
        # A new offset without new rows would be an empty batch.
        return start if found is None else found.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [] if start == end else [Span(Offset.from_json(start), Offset.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)  # noqa: S101
        start, end = partition.start, partition.end
        database = find_database(self._options.read.service)
        with database.translated(), open_reading(database) as connection:
            rows = run(connection, find_wire()).tail_attempts(
                since=start.at, from_transaction=start.transaction, to_transaction=end.transaction
            )
            run(connection, format_for_copy())
            query = copy_out(rows, self._columns, sql.SQL("TRUE"))
            yield from read_batches(connection, query, rows.params, self._columns)

    def _find_end(self, begin: Offset, end: Offset, max_rows: int | None) -> Script[Offset | None]:
        """The offset after at least one and as many whole transactions as the limit allows; None without new rows."""
        wire = yield from find_wire()
        rows = yield wire.count_written(
            since=begin.at,
            from_transaction=begin.transaction,
            to_transaction=end.transaction,
            # One row is enough to know that there are new rows.
            limit=1 if max_rows is None else max_rows + 1,
        )
        if not rows:
            return None
        total = 0
        for number, row in enumerate(rows):
            total += row["attempts"]
            if max_rows is not None and total > max_rows and number > 0:
                # The remaining rows may be as old as those that were read.
                return Offset(row["written_by"], begin.at)
        return end

    def _horizon(self) -> Offset:
        with self._connected() as connection:
            run(connection, find_wire())
            return Offset(*run(connection, read_horizon()))

    def _connected(self) -> Any:
        database = find_database(self._options.read.service)
        with database.translated():
            return open_reading(database)
