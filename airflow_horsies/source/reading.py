"""Rows of Postgres as Arrow record batches: COPY as text, parsed by Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import pq, sql
from psycopg.errors import error_from_result
from pyarrow import csv

from airflow_horsies.exceptions import WireError
from airflow_horsies.source.tables import ARROW_TYPES, Column, Kind, arrow_schema

CHUNK_BYTES = 3_000_000
NULL = r"\N"
ESCAPES = {r"\b": "\b", r"\f": "\f", r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\v": "\v"}


def read_batches(
    connection: psycopg.Connection[Any], query: sql.Composed, params: Mapping[str, Any], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Run a COPY and yield its rows."""
    schema = arrow_schema(columns)
    for chunk in read_chunks(connection, query, params):
        yield from _parse(chunk, columns, schema)


def read_chunks(
    connection: psycopg.Connection[Any], query: sql.Composed, params: Mapping[str, Any]
) -> Iterator[bytearray]:
    """The output of a COPY in chunks of whole rows, as the server sends one row at a time.

    Calls libpq directly, as Connection.copy() takes several times as long for each row.
    """
    link = connection.pgconn
    link.send_query(psycopg.ClientCursor(connection).mogrify(query, params).encode())
    _require(link, pq.ExecStatus.COPY_OUT)
    # One buffer, as joining a list of rows would cost as much as fetching them.
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
        # The rest of the output is not read.
        connection.close()
        raise
    if rows:
        yield rows


def one_block(text: bytes | bytearray, names: list[str]) -> csv.ReadOptions:
    return csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)


def _require(link: pq.abc.PGconn, status: pq.ExecStatus) -> None:
    result = link.get_result()
    if result is None or result.status != status:
        raise error_from_result(result) if result else psycopg.OperationalError("the connection was lost")


def _parse(chunk: bytearray, columns: Sequence[Column], schema: pa.Schema) -> list[pa.RecordBatch]:
    try:
        table = csv.read_csv(
            pa.BufferReader(chunk),
            read_options=one_block(chunk, [column.name for column in columns]),
            parse_options=csv.ParseOptions(
                delimiter="\t", quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(
                column_types={column.name: _csv_type(column) for column in columns},
                null_values=[NULL],
                strings_can_be_null=True,
                # The server has checked the encoding.
                check_utf8=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        raise WireError(
            f"A row contains a value that Spark cannot represent: {error}. Leave out its column."
        ) from error
    has_escapes = chunk.count(b"\\") > chunk.count(NULL.encode())
    arrays = []
    for column, array in zip(columns, table.columns, strict=True):
        if has_escapes and array.type == pa.string():
            array = _unescape(array)
        arrays.append(_lists(array) if column.kind is Kind.TEXTS else array)
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(arrays, schema=schema).to_batches()
    return batches


def _unescape(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Undo the escapes of COPY. Backslashes are replaced last, by way of NUL, which no text of Postgres contains."""
    texts = pc.replace_substring(texts, r"\\", "\0")
    for escaped, character in ESCAPES.items():
        texts = pc.replace_substring(texts, escaped, character)
    return pc.replace_substring(texts, "\0", "\\")


def _csv_type(column: Column) -> pa.DataType:
    return pa.string() if column.kind is Kind.TEXTS else ARROW_TYPES[column.kind]


def _lists(texts: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if text is None else json.loads(text) for text in texts.to_pylist()], ARROW_TYPES[Kind.TEXTS])
