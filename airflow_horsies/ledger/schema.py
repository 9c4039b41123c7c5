"""Numbered migrations of our own tables; the first process applies them."""

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
    """The version of the tables; ``min_writer`` is the oldest version whose release may still submit."""

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
    """The version of the ledger of the database; 0 if it has none."""
    return (yield from read_ledger_version()).number


def read_since(version: int, script: Script[T], otherwise: T) -> Script[T]:
    """The result of the script if the ledger has at least that version."""
    if (yield from read_version()) < version:
        return otherwise
    return (yield from script)


def migrate() -> Script[list[Migration]]:
    """Migrate the ledger and return the applied migrations; refuse a ledger that this release must not write."""
    (table,) = yield Statement(sql_text(PACKAGE, "find_migrations_table"))
    # Not read here if the table may be altered: reading it and then waiting for the lock could deadlock.
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
    """As :func:`migrate`, only if there is no ledger: a worker does not choose the moment of an upgrade."""
    if (yield from read_version()):
        return []
    return (yield from migrate())


def require_migrated() -> Script[list[Migration]]:
    """As :func:`migrate`, without applying anything: an administrator chooses the moment."""
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
    """Refuse a newer ledger unless it allows this release to write."""
    if version.min_writer > latest_version():
        raise LedgerNewer(
            f"The airflow_horsies tables are at version {version.number}, and this release supports only "
            f"{latest_version()}. It can read and cancel, but not submit. Upgrade airflow-horsies to the release that "
            "migrated them."
        )
