"""Queries of the health check: the server, the privileges of the user, and outdated workers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.wire.schema import Generation, Schema

PACKAGE = "airflow_horsies.wire"
# Every release reports this setting: without it, the names of the settings prove nothing.
KNOWN_SETTING = "auto_requeue_stale_claimed"
# Settings a worker reports, and the first schema version whose release reported them.
SETTINGS_SINCE = {"crashed_worker_recovery_grace_ms": 13, "orphan_task_audit_interval_ms": 36}
SETTING_UP_TO_0_4 = "heartbeat_retention_hours"
# The start of a worker is from its own clock, the time of the upgrade from that of the database.
CLOCK_TOLERANCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The Postgres server of a connection, and its current time."""

    clock: datetime
    database: str
    username: str
    version: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPrivilege:
    """A privilege that the user lacks: its purpose, and the grant to run."""

    purpose: str
    missing: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSchema:
    """A schema of the search path in which every user may create objects, and the statement that forbids it."""

    name: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedWorker:
    """A worker whose release is older than the schema; a useless one cannot finish any task."""

    worker_id: str
    evidence: str
    is_useless: bool


def read_server() -> Script[Server]:
    """The server of this connection."""
    (row,) = yield Statement(sql_text(PACKAGE, "read_server"))
    return Server(
        clock=row["clock"].astimezone(UTC),
        database=row["database"],
        username=row["username"],
        version=row["version"],
        is_read_only=row["is_read_only"],
    )


def find_missing_privileges() -> Script[list[MissingPrivilege]]:
    """The privileges that this user lacks for reading, sending and cancelling."""
    rows = yield Statement(sql_text(PACKAGE, "find_missing_privileges"))
    return [MissingPrivilege(purpose=row["purpose"], missing=row["missing"], remedy=row["remedy"]) for row in rows]


def find_open_schemas() -> Script[list[OpenSchema]]:
    """The schemas in which every user may create functions that statements on this connection may call."""
    rows = yield Statement(sql_text(PACKAGE, "find_open_schemas"))
    return [OpenSchema(name=row["name"], remedy=row["remedy"]) for row in rows]


def find_uncovered_classes() -> Script[list[str]]:
    """The retention classes whose tasks cannot end, because the history has no partition for the current time."""
    return [row["class_key"] for row in (yield Statement(sql_text(PACKAGE, "find_uncovered_classes")))]


def find_outdated_workers(schema: Schema, worker_ids: Collection[str]) -> Script[list[OutdatedWorker]]:
    """The workers whose release is older than the schema."""
    upgraded_at: datetime | None = None
    if schema.version is not None:
        (row,) = yield Statement(sql_text(PACKAGE, "read_schema_upgrade"))
        upgraded_at = row["upgraded_at"]
    rows = yield Statement(sql_text(PACKAGE, "read_worker_settings"), {"worker_ids": sorted(worker_ids)})
    judged = (
        judge_worker(schema, upgraded_at, row["worker_id"], row["worker_started_at"], row["settings"]) for row in rows
    )
    return [worker for worker in judged if worker is not None]


def judge_worker(
    schema: Schema,
    upgraded_at: datetime | None,
    worker_id: str,
    started_at: datetime,
    settings: Collection[str],
) -> OutdatedWorker | None:
    """A worker migrates the schema when it starts, so a worker that started before an upgrade is older."""
    if KNOWN_SETTING in settings:
        if schema.generation is Generation.MOVED and SETTING_UP_TO_0_4 in settings:
            return OutdatedWorker(worker_id=worker_id, evidence="it runs horsies 0.4 or older", is_useless=True)
        for setting, since in SETTINGS_SINCE.items():
            if schema.version is not None and schema.version >= since and setting not in settings:
                evidence = f"it does not know the setting {setting}"
                return OutdatedWorker(worker_id=worker_id, evidence=evidence, is_useless=False)
    if upgraded_at is not None and started_at < upgraded_at - CLOCK_TOLERANCE:
        evidence = f"it has run since {started_at:%Y-%m-%d %H:%M:%S %Z}, before the schema was upgraded"
        return OutdatedWorker(worker_id=worker_id, evidence=evidence, is_useless=False)
    return None
