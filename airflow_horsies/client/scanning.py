"""The client of the data source: the statements for its tables, and shared snapshots."""

from __future__ import annotations

from airflow_horsies.core.paging import Slice
from airflow_horsies.db.statement import Rows, Script, Statement
from airflow_horsies.exceptions import SchemaMissing
from airflow_horsies.ledger.schema import read_version
from airflow_horsies.ledger.submissions import sample_submissions, scan_submissions
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.wire.snapshots import (
    export_snapshot,
    find_parts_being_read,
    format_for_copy,
    lock_part,
    measure_tables,
    read_horizon,
)
from airflow_horsies.wire.statements import Wire

__all__ = [
    "Rows",
    "Slice",
    "Statement",
    "export_snapshot",
    "find_parts_being_read",
    "find_wire",
    "format_for_copy",
    "lock_part",
    "measure_tables",
    "read_horizon",
    "require_ledger",
    "sample_submissions",
    "scan_submissions",
]


def find_wire() -> Script[Wire]:
    """The statements for the schema of this database."""
    return Wire((yield from detect_schema()))


def require_ledger() -> Script[None]:
    if (yield from read_version()) == 0:
        raise SchemaMissing(
            "The database has no airflow_horsies tables, so nothing was submitted through Airflow. Run 'airflow "
            "horsies db migrate' to create them; the first submission does so as well."
        )
