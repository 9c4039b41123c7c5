from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from airflow_horsies.db.statement import Statement
from airflow_horsies.exceptions import LedgerNewer, LedgerOutdated
from airflow_horsies.ledger import schema
from airflow_horsies.ledger.schema import (
    Migration,
    create,
    latest_version,
    migrate,
    migrations,
    read_version,
    require_migrated,
)
from tests.unit import driving
from tests.unit.driving import drive

TWO = (Migration(1, "first", "CREATE one"), Migration(2, "second", "CREATE two"))


@pytest.fixture
def two_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "migrations", lambda: TWO)
    known = driving.sql_files() | {migration.sql: f"migration {migration.version}" for migration in TWO}

    def file_of(statement: Statement) -> str:
        return known[statement.sql]

    monkeypatch.setattr(driving, "file_of", file_of)


def at_version(*versions: int, min_writer: int = 1) -> dict[str, Any]:
    """The ledger's version each time it is read; 0 is no ledger."""
    read = iter(versions)
    seen: list[int] = []

    def find(_: Any) -> list[dict[str, Any]]:
        seen.append(next(read))
        return [{"found": seen[-1] > 0, "has_min_writer": seen[-1] > 1}]

    return {"find_migrations_table": find, "read_version": lambda _: [{"version": seen[-1], "min_writer": min_writer}]}


def applied(driven: driving.Driven[list[Migration]]) -> list[str]:
    return [name for name in driven.names if name.startswith("migration")]


@pytest.mark.parametrize(
    ("version", "applies"),
    [(0, ["migration 1", "migration 2"]), (1, ["migration 2"])],
)
@pytest.mark.usefixtures("two_migrations")
def test_migrations_that_are_missing_are_applied_in_order_and_recorded(version: int, applies: list[str]) -> None:
    driven = drive(migrate(), at_version(version, version))
    assert applied(driven) == applies
    recorded = [params["version"] for name, params in driven.ran if name == "record_migration"]
    assert recorded == [migration.version for migration in driven.outcome]
    assert driven.names.index("lock_migrations") < driven.names.index(applies[0])


@pytest.mark.usefixtures("two_migrations")
def test_current_ledger_takes_no_lock() -> None:
    driven = drive(migrate(), at_version(2))
    assert (driven.outcome, driven.names) == ([], ["find_migrations_table", "read_version"])


@pytest.mark.usefixtures("two_migrations")
def test_a_table_that_is_to_be_altered_is_not_read_before_the_lock() -> None:
    driven = drive(migrate(), at_version(1, 1))
    assert driven.names[:4] == ["find_migrations_table", "lock_migrations", "find_migrations_table", "read_version"]


@pytest.mark.usefixtures("two_migrations")
def test_who_waited_for_the_lock_looks_again_and_finds_it_done() -> None:
    driven = drive(migrate(), at_version(0, 2))
    assert (driven.outcome, applied(driven)) == ([], [])
    assert driven.names[-3:] == ["lock_migrations", "find_migrations_table", "read_version"]


@pytest.mark.parametrize("versions", [(3,), (0, 3)], ids=["at first sight", "behind the lock"])
@pytest.mark.usefixtures("two_migrations")
def test_newer_ledger_is_refused_where_it_says_so(versions: tuple[int, ...]) -> None:
    with pytest.raises(LedgerNewer, match=r"at version 3, and this release supports only 2.*Upgrade airflow-horsies"):
        drive(migrate(), at_version(*versions, min_writer=3))
    assert drive(migrate(), at_version(*versions, min_writer=2)).outcome == []


@pytest.mark.usefixtures("two_migrations")
def test_somebody_else_may_choose_the_moment_of_a_migration() -> None:
    with pytest.raises(LedgerOutdated, match=r"at version 1, and this release needs 2.*airflow horsies db migrate"):
        drive(require_migrated(), at_version(1))
    assert drive(require_migrated(), at_version(2)).outcome == []
    assert drive(require_migrated(), at_version(3)).outcome == []


@pytest.mark.usefixtures("two_migrations")
def test_a_worker_creates_the_tables_and_never_migrates_them() -> None:
    assert applied(drive(create(), at_version(0, 0, 0))) == ["migration 1", "migration 2"]
    assert applied(drive(create(), at_version(1))) == []


def test_version_is_zero_where_there_is_no_ledger() -> None:
    assert drive(read_version(), at_version(0)).outcome == 0
    assert drive(read_version(), at_version(7)).outcome == 7


def test_migrations_are_numbered_without_a_gap_and_named() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, latest_version() + 1))
    assert all(migration.name and migration.sql.strip() for migration in migrations())
    shipped = [file.name for file in files("airflow_horsies.ledger").joinpath("migrations").iterdir()]
    assert len([name for name in shipped if name.endswith(".sql")]) == len(migrations())
