"""Signals and who waits for them. A signal is stored once and consumed once."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_horsies.core.signals import MAX_WAITING
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import LedgerOutdated, SignalRefused
from airflow_horsies.ledger.schema import PACKAGE, read_version

# The first version of the ledger with all tables of this module.
SINCE = 9
# As many waiting tasks are made due by one signal.
MAX_RESUMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """A wait of a task: the attempt that parked last, and when the task resumes by itself.

    :param due_at: None if the wait has no end.
    :param times: the number of attempts that have parked in it.
    """

    task_id: str
    name: str
    occurrence: int
    attempt: int
    times: int
    parked_at: datetime
    due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A wait that has begun, in this attempt or in an earlier one."""

    due_at: datetime | None
    is_over: bool
    seconds_left: float | None


def require_messages() -> Script[None]:
    """Refuse tables that cannot hold signals and checkpoints."""
    version = yield from read_version()
    if version < SINCE:
        raise LedgerOutdated(
            f"The airflow_horsies tables are at version {version}, and signals and checkpoints need version {SINCE}. "
            "Workers do not migrate them. Run 'airflow horsies db migrate'."
        )


def lock_signal(targets: Collection[str], name: str) -> Script[None]:
    """Serialise who sends, takes or waits for a signal; the first lock of a transaction."""
    yield Statement(sql_text(PACKAGE, "lock_message_tables"))
    yield Statement(sql_text(PACKAGE, "lock_signal"), {"targets": sorted(targets), "name": name})


def find_message(target: str, name: str, dedup_key: str) -> Script[str | None]:
    """The id of the same signal if it was sent before."""
    values = {"target": target, "name": name, "dedup_key": dedup_key}
    rows = yield Statement(sql_text(PACKAGE, "find_message"), values)
    return rows[0]["id"] if rows else None


def record_message(
    target: str, name: str, payload: str, *, dedup_key: str | None, sent_by: str, message_id: str | None = None
) -> Script[str]:
    """Store a signal; the transaction holds its lock. The same id is stored once."""
    (row,) = yield Statement(sql_text(PACKAGE, "count_waiting_messages"), {"target": target, "limit": MAX_WAITING})
    if row["waiting"] >= MAX_WAITING:
        raise SignalRefused(
            f"{MAX_WAITING:,} signals wait for {target}, and no task has received them. Let a task receive some first.",
            task_id=target,
        )
    message_id = message_id or str(uuid.uuid4())
    yield Statement(
        sql_text(PACKAGE, "record_message"),
        {
            "id": message_id,
            "target": target,
            "name": name,
            "payload": payload,
            "dedup_key": dedup_key,
            "sent_by": sent_by,
        },
    )
    return message_id


def find_parkings(target: str, name: str) -> Script[list[tuple[str, int]]]:
    """The tasks that wait for a signal, and the attempts that parked; the longest wait first."""
    values = {"target": target, "name": name, "limit": MAX_RESUMED}
    rows = yield Statement(sql_text(PACKAGE, "find_parkings"), values)
    return [(row["horsies_task_id"], row["attempt"]) for row in rows]


def has_message(targets: Collection[str], name: str) -> Script[bool]:
    """Whether a signal waits that nobody has consumed."""
    (row,) = yield Statement(sql_text(PACKAGE, "has_message"), {"targets": list(targets), "name": name})
    return bool(row["is_there"])


def read_consumed(task_id: str, name: str, occurrence: int) -> Script[str | None]:
    """What an earlier attempt of the task has consumed, as JSON."""
    values = {"horsies_task_id": task_id, "name": name, "occurrence": occurrence}
    rows = yield Statement(sql_text(PACKAGE, "read_consumed_message"), values)
    return rows[0]["payload"] if rows else None


def take_message(
    task_id: str, targets: Collection[str], name: str, *, occurrence: int, attempt: int
) -> Script[str | None]:
    """Consume the oldest signal, as JSON. The transaction holds the lock of the signal and the claim of the task."""
    rows = yield Statement(
        sql_text(PACKAGE, "take_message"),
        {
            "horsies_task_id": task_id,
            "targets": list(targets),
            "name": name,
            "occurrence": occurrence,
            "attempt": attempt,
        },
    )
    return rows[0]["payload"] if rows else None


def begin_wait(
    task_id: str,
    targets: Sequence[str],
    name: str,
    *,
    occurrence: int,
    attempt: int,
    timeout_seconds: float | None,
) -> Script[Begun]:
    """Record that an attempt waits; the first attempt fixes the end of the wait."""
    (row,) = yield Statement(
        sql_text(PACKAGE, "begin_wait"),
        {
            "horsies_task_id": task_id,
            "targets": list(targets),
            "name": name,
            "occurrence": occurrence,
            "attempt": attempt,
            "timeout_seconds": timeout_seconds,
        },
    )
    return Begun(due_at=row["due_at"], is_over=row["is_over"], seconds_left=row["seconds_left"])


def count_parked(task_id: str, name: str, occurrence: int) -> Script[int]:
    """Count one more attempt that parks in this wait; returns how many attempts of the task have parked."""
    values = {"horsies_task_id": task_id, "name": name, "occurrence": occurrence}
    (row,) = yield Statement(sql_text(PACKAGE, "count_parked"), values)
    parked: int = row["parked"]
    return parked


def read_parkings(task_ids: Collection[str]) -> Script[dict[str, list[Parking]]]:
    """The waits of tasks, by task, in the order of their last attempts."""
    found: dict[str, list[Parking]] = {}
    for row in (yield Statement(sql_text(PACKAGE, "read_parkings"), {"ids": list(task_ids)})):
        due_at = row["due_at"]
        parking = Parking(
            task_id=row["horsies_task_id"],
            name=row["name"],
            occurrence=row["occurrence"],
            attempt=row["attempt"],
            times=row["times"],
            parked_at=row["parked_at"].astimezone(UTC),
            due_at=None if due_at is None else due_at.astimezone(UTC),
        )
        found.setdefault(parking.task_id, []).append(parking)
    return found
