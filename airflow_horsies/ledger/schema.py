"""Numbered migrations of our own tables, applied once whoever comes first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from airflow_horsies.exceptions import LedgerNewer
from airflow_horsies.wire.statement import Script, Statement, sql_text

T = TypeVar("T")

PACKAGE = "airflow_horsies.ledger"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``migrations/``, named ``<number>_<what it adds>.sql``."""

    version: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    found = []
    for file in files(PACKAGE).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def latest_version() -> int:
    return migrations()[-1].version


def read_version() -> Script[int]:
    """The version of the database's ledger; 0 where it has none."""
    (table,) = yield Statement(sql_text(PACKAGE, "find_migrations_table"))
    if not table["found"]:
        return 0
    (row,) = yield Statement(sql_text(PACKAGE, "read_version"))
    version: int = row["version"]
    return version


def read_since(version: int, script: Script[T], otherwise: T) -> Script[T]:
    """What the script reads, where the ledger is of that version or a later one."""
    if (yield from read_version()) < version:
        return otherwise
    return (yield from script)


def migrate() -> Script[list[Migration]]:
    """Bring the ledger up to date and return what was applied; refuses a ledger newer than this package."""
    version = yield from read_version()
    if version == latest_version():
        return []
    require_not_newer(version)
    yield Statement(sql_text(PACKAGE, "lock_migrations"))
    version = yield from read_version()
    require_not_newer(version)
    pending = [migration for migration in migrations() if migration.version > version]
    for migration in pending:
        yield Statement(migration.sql)
        yield Statement(sql_text(PACKAGE, "record_migration"), {"version": migration.version, "name": migration.name})
    return pending


def require_not_newer(version: int) -> None:
    if version > latest_version():
        raise LedgerNewer(
            f"the airflow_horsies tables are at version {version}, and this release knows only {latest_version()}: "
            "they are read but not written. Upgrade airflow-horsies here to the release that migrated them"
        )
