"""The attempts of ended tasks: one text of JSON for each task, taken apart with Arrow.

JSON of lists is almost CSV. Where it holds no backslash, no text in it holds a quotation mark or a control character,
so that its separators can be made those of CSV; those within a text are put back afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from airflow_horsies.core.paging import Slice
from airflow_horsies.db.statement import Statement
from airflow_horsies.exceptions import WireError
from airflow_horsies.source.reading import one_block, read_chunks
from airflow_horsies.source.scanning import copy_whole
from airflow_horsies.source.tables import ARROW_TYPES, ATTEMPTS, Column, Kind, arrow_schema

# In the order of upstream's list.
OF_ATTEMPT = (
    "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message", "failed_reason",
    "worker_id", "hostname", "pid", "process_name",
)  # fmt: skip
OF_TASK = ("task_id", "task_name", "queue")
BETWEEN_FIELDS, BETWEEN_ATTEMPTS = ", ", "], ["
# No JSON holds this character as it is. An attempt that another follows leaves the fields of the task empty.
SEPARATOR = "\x1f"
NEXT_LINE = SEPARATOR * len(OF_TASK) + "\n"
TIME = ARROW_TYPES[Kind.TIME]


def read_snapshots(
    connection: psycopg.Connection[Any], rows: Statement, columns: Sequence[Column], part: Slice
) -> Iterator[pa.RecordBatch]:
    """The attempts in the snapshots of a statement, those that ended within the times of a slice."""
    wanted = [column.name for column in columns]
    needed = {*wanted, *(["finished_at"] if part.since or part.until else [])}
    schema = arrow_schema(columns)
    for chunk in read_chunks(connection, copy_whole(rows), rows.params):
        for table in _tables(chunk, needed):
            chosen = _within(table, part).select(wanted).cast(schema)
            yield from chosen.to_batches()


def _tables(chunk: bytearray, names: Collection[str]) -> Iterator[pa.Table]:
    plain, others = bytes(chunk), b""
    if b"\\" in chunk:
        lines = plain.splitlines(keepends=True)
        plain = b"".join(line for line in lines if b"\\" not in line)
        others = b"".join(line for line in lines if b"\\" in line)
    if plain:
        try:
            table = _parse(_as_csv(plain), names)
        except pa.ArrowInvalid:
            others += plain
        else:
            yield _put_back(table)
    if others:
        try:
            yield _parse(_rewritten(others), names)
        except (pa.ArrowInvalid, ValueError) as error:
            raise WireError(f"attempts of an ended task that cannot be read: {error}") from error


def _as_csv(lines: bytes) -> bytes:
    separator = SEPARATOR.encode()
    lines = lines.replace(BETWEEN_ATTEMPTS.encode(), NEXT_LINE.encode())
    return lines.replace(BETWEEN_FIELDS.encode(), separator).replace(b"\t", separator)


def _put_back(table: pa.Table) -> pa.Table:
    """What looked like a separator within a text."""
    for index, column in enumerate(table.columns):
        if column.type == pa.string() and _holds_separator(column):
            restored = pc.replace_substring(column, NEXT_LINE, BETWEEN_ATTEMPTS)
            restored = pc.replace_substring(restored, SEPARATOR, BETWEEN_FIELDS)
            table = table.set_column(index, table.field(index), restored)
    return table


def _holds_separator(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring(column, SEPARATOR)).as_py())


def _rewritten(lines: bytes) -> bytes:
    """The same lines for a reader of CSV, by way of Python."""
    rewritten = []
    # COPY doubles each backslash; nothing else in these columns needs it.
    for line in lines.replace(rb"\\", b"\\").decode().rstrip("\n").split("\n"):
        snapshot, task_id, task_name, queue = line.split("\t")
        of_task = (task_id, json.loads(task_name), json.loads(queue))
        for attempt in json.loads(f"[[{snapshot}]]"):
            rewritten.append(SEPARATOR.join(map(_field, (*attempt, *of_task))) + "\n")
    return "".join(rewritten).encode()


def _field(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return json.dumps(value)


def _parse(lines: bytes, names: Collection[str]) -> pa.Table:
    types = {name: _csv_type(name) for name in (*OF_ATTEMPT, *OF_TASK)}
    table = csv.read_csv(
        pa.BufferReader(lines),
        read_options=one_block(lines, list(types)),
        # A text may hold what is the end of a line now.
        parse_options=csv.ParseOptions(delimiter=SEPARATOR, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=[name for name in types if name in names],
            null_values=["", "null"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
            true_values=["true"],
            false_values=["false"],
        ),
    )
    for name in set(OF_TASK) & set(names):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.field(index), pc.fill_null_backward(table.column(index)))
    return table


def _csv_type(name: str) -> pa.DataType:
    # Times are microseconds there.
    kind = ATTEMPTS.column(name).kind
    return pa.int64() if kind is Kind.TIME else ARROW_TYPES[kind]


def _within(table: pa.Table, part: Slice) -> pa.Table:
    if part.since is not None:
        table = table.filter(pc.greater_equal(table["finished_at"].cast(TIME), pa.scalar(part.since, TIME)))
    if part.until is not None:
        table = table.filter(pc.less(table["finished_at"].cast(TIME), pa.scalar(part.until, TIME)))
    return table
