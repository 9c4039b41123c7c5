from __future__ import annotations

from airflow_horsies.ledger.checks import find_missing_privileges
from airflow_horsies.wire.checks import MissingPrivilege
from tests.unit.driving import drive


def test_privileges_missing_on_our_tables_are_needed_to_submit() -> None:
    row = {"missing": "USAGE on schema airflow_horsies", "remedy": "GRANT USAGE …;"}
    driven = drive(find_missing_privileges(), {"find_missing_privileges": [row]})
    assert driven.outcome == [MissingPrivilege(purpose="submit", **row)]
