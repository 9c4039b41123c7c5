"""Time limits of statements."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_horsies.db.statement import Statement, sql_text

PACKAGE = "airflow_horsies.db"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a statement may wait for a lock, run on the server, and stay without an answer.

    A stricter limit that the database or the role has is kept.
    """

    lock_seconds: float = 10.0
    statement_seconds: float = 20.0
    answer_seconds: float = 30.0

    @property
    def statement(self) -> Statement:
        """For the transaction it is the first statement of."""
        return Statement(
            sql_text(PACKAGE, "limit_transaction"),
            {
                "lock_milliseconds": int(self.lock_seconds * 1000),
                "statement_milliseconds": int(self.statement_seconds * 1000),
            },
        )


LIMITS = Limits()
