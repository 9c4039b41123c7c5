"""Limits in time that hold for one transaction."""

from __future__ import annotations

from airflow_horsies.wire.statement import Statement, sql_text


def limit_transaction(*, lock_seconds: float, statement_seconds: float) -> Statement:
    """How long each statement after this one may wait for a lock, and run; a stricter limit of the role is kept."""
    return Statement(
        sql_text("airflow_horsies.wire", "limit_transaction"),
        {"lock_milliseconds": int(lock_seconds * 1000), "statement_milliseconds": int(statement_seconds * 1000)},
    )
