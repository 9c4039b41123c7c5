"""Formats and snapshots for readers: value formats, a shared snapshot, and the horizon of settled transactions."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from airflow_horsies.db.statement import Script, Statement, sql_text

PACKAGE = "airflow_horsies.wire"


def format_for_copy() -> Script[None]:
    """Set the format of values for the rest of the transaction."""
    yield Statement(sql_text(PACKAGE, "format_for_copy"))


def measure_tables(names: Collection[str]) -> Script[int]:
    """The size of tables with their partitions, in bytes."""
    (row,) = yield Statement(sql_text(PACKAGE, "measure_tables"), {"names": list(names)})
    size: int = row["bytes"]
    return size


def export_snapshot() -> Script[str]:
    """The name of the snapshot of this transaction, for use by others while it lasts."""
    (row,) = yield Statement(sql_text(PACKAGE, "export_snapshot"))
    snapshot: str = row["snapshot"]
    return snapshot


def lock_part(read_key: int, part: int) -> Script[None]:
    """Mark a part of a read as being read, for the keeper of the snapshot, until the transaction ends."""
    yield Statement(sql_text(PACKAGE, "lock_part"), {"read_key": read_key, "part": part})


def find_parts_being_read(read_key: int) -> Script[set[int]]:
    rows = yield Statement(sql_text(PACKAGE, "find_parts_being_read"), {"read_key": read_key})
    return {row["part"] for row in rows}


def read_horizon() -> Script[tuple[int, datetime]]:
    """The oldest transaction that may still run, and the current time."""
    (row,) = yield Statement(sql_text(PACKAGE, "read_horizon"))
    return row["horizon"], row["at"].astimezone(UTC)
