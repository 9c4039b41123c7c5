"""Time limits of statements."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_horsies.db.statement import Statement, sql_text

PACKAGE = "airflow_horsies.db"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a statement may wait for a lock, run on the server, and remain unanswered.

    ``idle_seconds`` is how long a transaction may wait for its next statement: a suspended process must not keep locks.

    A stricter limit of the database or the role takes precedence.
    """

    lock_seconds: float = 10.0
    statement_seconds: float = 20.0
    answer_seconds: float = 30.0
    idle_seconds: float = 30.0

    @property
    def statement(self) -> Statement:
        """Sets the limits; the first statement of a transaction."""
        return Statement(
            sql_text(PACKAGE, "limit_transaction"),
            {
                "lock_milliseconds": int(self.lock_seconds * 1000),
                "statement_milliseconds": int(self.statement_seconds * 1000),
                "idle_milliseconds": int(self.idle_seconds * 1000),
            },
        )


LIMITS = Limits()
