"""Numbered migrations of our own tables, applied once whoever comes first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import LedgerNewer, LedgerOutdated

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


@dataclass(frozen=True, slots=True)
class LedgerVersion:
    """How far the tables are migrated; ``min_writer`` is the oldest version whose release may still submit."""

    number: int
    min_writer: int = 1


def read_ledger_version() -> Script[LedgerVersion]:
    (table,) = yield Statement(sql_text(PACKAGE, "find_migrations_table"))
    if not table["found"]:
        return LedgerVersion(0)
    return (yield from _read_recorded_version())


def _read_recorded_version() -> Script[LedgerVersion]:
    (row,) = yield Statement(sql_text(PACKAGE, "read_version"))
    return LedgerVersion(row["version"], row["min_writer"])


def read_version() -> Script[int]:
    """The version of the database's ledger; 0 where it has none."""
    return (yield from read_ledger_version()).number


def read_since(version: int, script: Script[T], otherwise: T) -> Script[T]:
    """What the script reads, where the ledger is of that version or a later one."""
    if (yield from read_version()) < version:
        return otherwise
    return (yield from script)


def migrate() -> Script[list[Migration]]:
    """Bring the ledger up to date and return what was applied; refuses one that this release may not write."""
    (table,) = yield Statement(sql_text(PACKAGE, "find_migrations_table"))
    # Who has read a table that is to be altered, and then waits for the lock, waits for whoever waits for the table.
    if table["has_min_writer"]:
        version = yield from _read_recorded_version()
        if version.number >= latest_version():
            require_writable(version)
            return []
    yield Statement(sql_text(PACKAGE, "lock_migrations"))
    version = yield from read_ledger_version()
    require_writable(version)
    pending = [migration for migration in migrations() if migration.version > version.number]
    if pending:
        yield Statement(sql_text(PACKAGE, "limit_migration"))
    for migration in pending:
        yield Statement(migration.sql)
        yield Statement(sql_text(PACKAGE, "record_migration"), {"version": migration.version, "name": migration.name})
    return pending


def create() -> Script[list[Migration]]:
    """As :func:`migrate`, only where there is nothing: a worker does not choose the moment of an upgrade."""
    if (yield from read_version()):
        return []
    return (yield from migrate())


def require_migrated() -> Script[list[Migration]]:
    """As :func:`migrate`, where somebody else is to choose the moment: nothing is applied."""
    version = yield from read_ledger_version()
    require_writable(version)
    if version.number < latest_version():
        raise LedgerOutdated(
            f"The airflow_horsies tables are at version {version.number}, and this release needs {latest_version()}. "
            "They are not migrated automatically, because [horsies] auto_migrate is off. Run 'airflow horsies db "
            "migrate'."
        )
    return []


def require_writable(version: LedgerVersion) -> None:
    """A newer ledger is written as long as it says that this release still may."""
    if version.min_writer > latest_version():
        raise LedgerNewer(
            f"The airflow_horsies tables are at version {version.number}, and this release supports only "
            f"{latest_version()}. It can read and cancel, but not submit. Upgrade airflow-horsies to the release that "
            "migrated them."
        )
