"""Rows of Postgres as Arrow record batches: COPY in CSV, parsed by Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq, sql
from psycopg.errors import error_from_result
from pyarrow import csv

from airflow_horsies.exceptions import WireError
from airflow_horsies.spark.tables import ARROW_TYPES, Column, Kind, arrow_schema

CHUNK_BYTES = 8_000_000


def read_batches(
    connection: psycopg.Connection[Any], query: sql.Composed, params: Mapping[str, Any], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Runs a COPY ... (FORMAT csv) and yields what it brings."""
    schema = arrow_schema(columns)
    for chunk in _chunks(connection, psycopg.ClientCursor(connection).mogrify(query, params)):
        yield from _parse(chunk, columns, schema)


def _chunks(connection: psycopg.Connection[Any], statement: str) -> Iterator[bytearray]:
    """Whole rows, as the server sends one at a time: a row that is cut in two could not be parsed.

    libpq is asked itself, as Connection.copy() takes several times as long for each row.
    """
    link = connection.pgconn
    link.send_query(statement.encode())
    _require(link, pq.ExecStatus.COPY_OUT)
    # One buffer, as a list of a chunk's rows to join costs as much again as fetching them.
    rows = bytearray()
    fetch = link.get_copy_data
    try:
        while True:
            length, row = fetch(0)
            if length < 0:
                break
            rows += row
            if len(rows) >= CHUNK_BYTES:
                yield rows
                rows = bytearray()
        _require(link, pq.ExecStatus.COMMAND_OK)
        while link.get_result() is not None:
            pass
    except BaseException:
        # Nobody reads the rest.
        connection.close()
        raise
    if rows:
        yield rows


def _require(link: pq.abc.PGconn, status: pq.ExecStatus) -> None:
    result = link.get_result()
    if result is None or result.status != status:
        raise error_from_result(result) if result else psycopg.OperationalError("the connection was lost")


def _parse(chunk: bytearray, columns: Sequence[Column], schema: pa.Schema) -> list[pa.RecordBatch]:
    try:
        table = csv.read_csv(
            pa.BufferReader(chunk),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(chunk) + 1, column_names=[column.name for column in columns]
            ),
            # Only what is quoted can go over several lines.
            parse_options=csv.ParseOptions(newlines_in_values=b'"' in chunk),
            convert_options=csv.ConvertOptions(
                column_types={column.name: _csv_type(column) for column in columns},
                null_values=[""],
                strings_can_be_null=True,
                # COPY quotes an empty text, and leaves a NULL bare.
                quoted_strings_can_be_null=False,
                # The server has seen to that.
                check_utf8=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        raise WireError(f"a value that Spark cannot hold: {error}") from error
    arrays = [
        _lists(array) if column.kind is Kind.TEXTS else array
        for column, array in zip(columns, table.columns, strict=True)
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(arrays, schema=schema).to_batches()
    return batches


def _csv_type(column: Column) -> pa.DataType:
    return pa.string() if column.kind is Kind.TEXTS else ARROW_TYPES[column.kind]


def _lists(texts: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if text is None else json.loads(text) for text in texts.to_pylist()], ARROW_TYPES[Kind.TEXTS])
