"""Queries of the health check about our own tables."""

from __future__ import annotations

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.wire.checks import MissingPrivilege


def find_missing_privileges() -> Script[list[MissingPrivilege]]:
    """The privileges that this user lacks for submitting."""
    rows = yield Statement(sql_text(PACKAGE, "find_missing_privileges"))
    return [MissingPrivilege(purpose="submit", missing=row["missing"], remedy=row["remedy"]) for row in rows]
