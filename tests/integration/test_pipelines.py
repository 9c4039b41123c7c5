"""Statements that are sent without waiting for each, on a real connection."""

from __future__ import annotations

import pytest

from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Statement, fetch
from airflow_horsies.hook import HorsiesHook
from tests.integration.releases import MOVED


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@pytest.mark.parametrize("pipelined", [True, False])
def test_rows_that_a_script_returns_can_be_read_after_it(hook: HorsiesHook, pipelined: bool) -> None:
    session = Session(hook.settings.database)
    rows = session.run(lambda: fetch(Statement("SELECT generate_series(1, 3) AS n")), pipelined=pipelined)
    assert [row["n"] for row in rows] == [1, 2, 3]
    session.close()
