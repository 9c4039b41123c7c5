"""The outcomes of items of chunks, as workers write them; and what workers can do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import LedgerOutdated
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.wire.encoding import COMPACT

# The first version of the ledger with all tables of this module.
SINCE = 5
KEEP_WORKERS = timedelta(days=1)


def require_chunks() -> Script[None]:
    """Refuse tables that cannot hold the outcomes of items."""
    version = yield from read_version()
    if version < SINCE:
        raise LedgerOutdated(
            f"The airflow_horsies tables are at version {version}, and chunks need version {SINCE}. Workers do not "
            "migrate them. Run 'airflow horsies db migrate'."
        )


def lock_tables() -> Script[None]:
    """Wait for locks of other processes on the tables of items; before the transaction locks the claim of a chunk."""
    yield Statement(sql_text(PACKAGE, "lock_item_tables"))


def record_items(task_id: str, ended: Sequence[ItemOutcome]) -> Script[None]:
    """Write outcomes; those that were written before are kept. The transaction must hold the claim of the chunk."""
    items = COMPACT.encode([_columns(item) for item in ended])
    yield Statement(sql_text(PACKAGE, "record_items"), {"horsies_task_id": task_id, "items": items})


def read_recorded(task_id: str) -> Script[dict[int, str]]:
    """The outcomes by number of the items that have one."""
    rows = yield Statement(sql_text(PACKAGE, "read_recorded_items"), {"horsies_task_id": task_id})
    return {row["number"]: row["outcome"] for row in rows}


def read_dropped(task_id: str) -> Script[frozenset[int]]:
    """The numbers of the items that must not be started any more."""
    rows = yield Statement(sql_text(PACKAGE, "read_dropped_items"), {"horsies_task_id": task_id})
    return frozenset(number for row in rows for number in row["dropped"])


def record_worker(*, hostname: str, pid: int, release: str, features: Collection[str]) -> Script[bool]:
    """Record what a worker can do; False if the tables are too old for it."""
    if (yield from read_version()) < SINCE:
        return False
    yield Statement(
        sql_text(PACKAGE, "record_worker"),
        {
            "hostname": hostname,
            "pid": pid,
            "release": release,
            "features": sorted(features),
            "keep_seconds": KEEP_WORKERS.total_seconds(),
        },
    )
    return True


def _columns(item: ItemOutcome) -> dict[str, object]:
    """The values of one item for record_items.sql, as JSON."""
    return {
        "number": item.number,
        "outcome": item.outcome,
        "attempt": item.attempt,
        "tries": item.tries,
        "started_at": None if item.started_at is None else item.started_at.isoformat(),
        "finished_at": item.finished_at.isoformat(),
        "error_code": item.error_code,
        "error_message": item.error_message,
        "value": item.value,
        "hostname": item.hostname,
    }
