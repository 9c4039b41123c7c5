"""Checkpoints: the last value that a task kept for its next attempt, or for the next task of the same life."""

from __future__ import annotations

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE

# The item of a task that is no chunk.
NO_ITEM = -1


def lock_table() -> Script[None]:
    """Wait for locks of other processes on the table; before the transaction locks the claim of a task."""
    yield Statement(sql_text(PACKAGE, "lock_checkpoint_table"))


def write_checkpoint(task_id: str, item: int | None, *, attempt: int, value: str) -> Script[None]:
    """Write it; the transaction must hold the claim of the task."""
    yield Statement(
        sql_text(PACKAGE, "write_checkpoint"),
        {"horsies_task_id": task_id, "item": NO_ITEM if item is None else item, "attempt": attempt, "value": value},
    )


def read_checkpoint(task_id: str, item: int | None) -> Script[str | None]:
    """The last checkpoint as JSON: of the task or the item itself, or of what was sent before it in its life."""
    place = {"horsies_task_id": task_id, "item": NO_ITEM if item is None else item}
    rows = yield Statement(sql_text(PACKAGE, "read_checkpoint"), place)
    return rows[0]["value"] if rows else None
