"""The attempts of ended tasks, from one JSON text per task, parsed with Arrow.

A JSON list of lists is almost CSV. If it contains no backslash, its strings contain no quotation marks or control
characters, so its separators can be replaced by those of CSV. Separators inside a string are restored afterwards.
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

# In the order of horsies' own list.
ATTEMPT_FIELDS = (
    "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message", "failed_reason",
    "worker_id", "hostname", "pid", "process_name",
)  # fmt: skip
TASK_FIELDS = ("task_id", "task_name", "queue")
BETWEEN_FIELDS, BETWEEN_ATTEMPTS = ", ", "], ["
# JSON never contains this character unescaped. Only the last attempt of a task has the fields of the task.
SEPARATOR = "\x1f"
NEXT_LINE = SEPARATOR * len(TASK_FIELDS) + "\n"
TIME = ARROW_TYPES[Kind.TIME]


def read_snapshots(
    connection: psycopg.Connection[Any], rows: Statement, columns: Sequence[Column], part: Slice
) -> Iterator[pa.RecordBatch]:
    """The attempts in the snapshots of a statement that ended within the times of a slice."""
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
            yield _restore_separators(table)
    if others:
        try:
            yield _parse(_rewritten(others), names)
        except (pa.ArrowInvalid, ValueError) as error:
            raise WireError(
                f"The attempts of an ended task cannot be read: {error}. Exclude it with since or until."
            ) from error


def _as_csv(lines: bytes) -> bytes:
    separator = SEPARATOR.encode()
    lines = lines.replace(BETWEEN_ATTEMPTS.encode(), NEXT_LINE.encode())
    return lines.replace(BETWEEN_FIELDS.encode(), separator).replace(b"\t", separator)


def _restore_separators(table: pa.Table) -> pa.Table:
    """Restore the separators inside of strings."""
    for index, column in enumerate(table.columns):
        if column.type == pa.string() and _contains_separator(column):
            restored = pc.replace_substring(column, NEXT_LINE, BETWEEN_ATTEMPTS)
            restored = pc.replace_substring(restored, SEPARATOR, BETWEEN_FIELDS)
            table = table.set_column(index, table.field(index), restored)
    return table


def _contains_separator(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring(column, SEPARATOR)).as_py())


def _rewritten(lines: bytes) -> bytes:
    """The same lines as CSV, converted in Python."""
    rewritten = []
    # COPY doubles each backslash. These columns contain nothing else that it escapes.
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
    types = {name: _csv_type(name) for name in (*ATTEMPT_FIELDS, *TASK_FIELDS)}
    table = csv.read_csv(
        pa.BufferReader(lines),
        read_options=one_block(lines, list(types)),
        # A string may contain a line end after the replacement.
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
    for name in set(TASK_FIELDS) & set(names):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.field(index), pc.fill_null_backward(table.column(index)))
    return table


def _csv_type(name: str) -> pa.DataType:
    # Times are microseconds in the snapshots.
    kind = ATTEMPTS.column(name).kind
    return pa.int64() if kind is Kind.TIME else ARROW_TYPES[kind]


def _within(table: pa.Table, part: Slice) -> pa.Table:
    if part.since is not None:
        table = table.filter(pc.greater_equal(table["finished_at"].cast(TIME), pa.scalar(part.since, TIME)))
    if part.until is not None:
        table = table.filter(pc.less(table["finished_at"].cast(TIME), pa.scalar(part.until, TIME)))
    return table
