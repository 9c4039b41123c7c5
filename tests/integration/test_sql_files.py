"""Every statement is understood by Postgres on the schema it is written for."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.hook import HorsiesHook
from tests.integration.releases import keeps_history

PACKAGE = Path(__file__).parents[2] / "airflow_horsies"
# The statements that are the same on every release.
SHARED = sorted((PACKAGE / "wire/sql").glob("*.sql")) + sorted((PACKAGE / "ledger/sql").glob("*.sql"))


def test_every_statement_is_planned_by_postgres(hook: HorsiesHook, release: str) -> None:
    migrate_ledger(hook.client)
    generation = "moved" if keeps_history(release) else "in_place"
    paths = SHARED + sorted((PACKAGE / "wire/sql" / generation).glob("*.sql"))
    assert len(paths) > 15
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        for path in paths:
            statement = re.sub(r"%\(\w+\)s", "NULL", path.read_text()).replace("%%", "%")
            if statement.startswith("COPY"):
                # It cannot be explained; out of the table it names the same columns.
                statement = f"SELECT {statement[statement.index('(') + 1 : statement.index(')')]} FROM horsies_tasks"
            try:
                connection.execute(f"EXPLAIN {statement}".encode())
            except psycopg.Error as error:
                pytest.fail(f"{path.relative_to(PACKAGE)}: {error}")
            connection.rollback()
