"""What a reader sees: how values are written, a state of the database that several share, how far it is settled."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from airflow_horsies.db.statement import Script, Statement, sql_text

PACKAGE = "airflow_horsies.wire"


def format_for_copy() -> Script[None]:
    """How values are written, for the rest of the transaction."""
    yield Statement(sql_text(PACKAGE, "format_for_copy"))


def measure_tables(names: Collection[str]) -> Script[int]:
    """The bytes of tables with their partitions."""
    (row,) = yield Statement(sql_text(PACKAGE, "measure_tables"), {"names": list(names)})
    size: int = row["bytes"]
    return size


def export_snapshot() -> Script[str]:
    """A name under which other transactions see what this one sees, while it lasts."""
    (row,) = yield Statement(sql_text(PACKAGE, "export_snapshot"))
    snapshot: str = row["snapshot"]
    return snapshot


def lock_part(read_key: int, part: int) -> Script[None]:
    """Show to the keeper of the snapshot that a part of a read is being read, until the transaction ends."""
    yield Statement(sql_text(PACKAGE, "lock_part"), {"read_key": read_key, "part": part})


def find_parts_being_read(read_key: int) -> Script[set[int]]:
    rows = yield Statement(sql_text(PACKAGE, "find_parts_being_read"), {"read_key": read_key})
    return {row["part"] for row in rows}


def read_horizon() -> Script[tuple[int, datetime]]:
    """The first transaction that may not have ended yet, and the time."""
    (row,) = yield Statement(sql_text(PACKAGE, "read_horizon"))
    return row["horizon"], row["at"].astimezone(UTC)
