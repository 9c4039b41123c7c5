"""The statements that read a slice of a table, with the requested columns and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_horsies.client.scanning import find_wire, require_ledger, scan_submissions
from airflow_horsies.core.paging import Slice
from airflow_horsies.db.statement import Script, Statement
from airflow_horsies.source.tables import ATTEMPTS, NODES, SUBMISSIONS, TASKS, WORKERS, WORKFLOWS, Column, Kind, Table

COPY = sql.SQL("COPY (SELECT {columns} FROM ({rows}) AS scanned WHERE {condition}) TO STDOUT")
COPY_WHOLE = sql.SQL("COPY ({rows}) TO STDOUT")


@dataclass(frozen=True, slots=True)
class Scan:
    """The statements that read a slice of a table."""

    rows: tuple[Statement, ...]
    # For attempts: the statement that returns one row per ended task, with all its attempts.
    snapshots: Statement | None = None


def scan(table: Table, part: Slice, *, filtered: bool = False) -> Script[Scan]:
    """The statements for the rows of a slice, for the schema generation of the database.

    :param filtered: whether Postgres evaluates conditions on any column.
    """
    if table.name == SUBMISSIONS.name:
        yield from require_ledger()
        return Scan((scan_submissions(part),))
    wire = yield from find_wire()
    if table.name == ATTEMPTS.name:
        if not wire.keeps_snapshots:
            return Scan((wire.scan_attempts(part),))
        if filtered:
            return Scan((wire.scan_live_attempts(part), wire.scan_ended_attempts(part)))
        return Scan((wire.scan_live_attempts(part),), wire.scan_snapshots(part))
    scans = {
        TASKS.name: wire.scan_tasks,
        WORKFLOWS.name: wire.scan_workflows,
        NODES.name: wire.scan_nodes,
        WORKERS.name: wire.scan_workers,
    }
    return Scan((scans[table.name](part),))


def copy_out(rows: Statement, columns: Sequence[Column], condition: sql.Composable) -> sql.Composed:
    """COPY of some columns of a statement, with its named parameters."""
    return COPY.format(
        columns=sql.SQL(", ").join(_as_text(column) for column in columns),
        rows=sql.SQL(rows.sql),
        condition=condition,
    )


def copy_whole(rows: Statement) -> sql.Composed:
    """COPY of all columns of a statement, in the text format."""
    return COPY_WHOLE.format(rows=sql.SQL(rows.sql))


def _as_text(column: Column) -> sql.Composable:
    if column.kind is Kind.TEXTS:
        return sql.SQL("to_json({})").format(sql.Identifier(column.name))
    return sql.Identifier(column.name)
