"""The statement that reads a slice of a table, with the columns and filters that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_horsies.exceptions import SchemaMissing
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.ledger.submissions import scan_submissions
from airflow_horsies.models import Slice
from airflow_horsies.spark.tables import ATTEMPTS, SUBMISSIONS, TASKS, WORKERS, Column, Kind, Table
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.wire.statement import Script, Statement
from airflow_horsies.wire.statements import Wire

COPY = sql.SQL("COPY (SELECT {columns} FROM ({rows}) AS scanned WHERE {condition}) TO STDOUT (FORMAT csv)")


def scan(table: Table, part: Slice) -> Script[Statement]:
    """The rows of a slice, for whichever schema the database holds."""
    if table.name == SUBMISSIONS.name:
        yield from require_ledger()
        return scan_submissions(part)
    wire = Wire((yield from detect_schema()))
    scans = {TASKS.name: wire.scan_tasks, ATTEMPTS.name: wire.scan_attempts, WORKERS.name: wire.scan_workers}
    return scans[table.name](part)


def require_ledger() -> Script[None]:
    if (yield from read_version()) == 0:
        raise SchemaMissing(
            "the database has no tables of airflow-horsies, so nothing was submitted through Airflow. "
            "'airflow horsies db migrate' makes them, as does the first submission"
        )


def copy_out(rows: Statement, columns: Sequence[Column], condition: sql.Composable) -> sql.Composed:
    """COPY of some columns of a statement; its parameters stay named."""
    return COPY.format(
        columns=sql.SQL(", ").join(_as_text(column) for column in columns),
        rows=sql.SQL(rows.sql),
        condition=condition,
    )


def _as_text(column: Column) -> sql.Composable:
    if column.kind is Kind.TEXTS:
        return sql.SQL("to_json({})").format(sql.Identifier(column.name))
    return sql.Identifier(column.name)
