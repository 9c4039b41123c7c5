"""What a driver's error means."""

from __future__ import annotations

from typing import Any

import psycopg
import psycopg2

DRIVER_ERRORS: tuple[type[Exception], ...] = (psycopg.Error, psycopg2.Error)
# A serialisation failure, a deadlock, or two first claims of one idempotency key: nothing was committed.
RERUN_SQLSTATES = frozenset({"40001", "40P01", "23505"})
# No server, or it went away: a shutdown, a start, idle for too long, no connection left. Class 08 is the same.
LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
# A server that takes no writes for now: a standby, as after a failover, or one whose disk is full.
READ_ONLY_SQLSTATE = "25006"
# A lock that could not be had in time, and a statement that was cancelled or took too long.
BUSY_SQLSTATES = frozenset({"55P03", "57014", READ_ONLY_SQLSTATE})
# Conflicts between transactions, and resources that are used up.
BUSY_CLASSES = ("40", "53")


def sqlstate_of(error: BaseException | None) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def is_connection_lost(error: Exception) -> bool:
    """No server, or it went away, or an operational error without a state."""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("08") or state in LOST_SQLSTATES
    return isinstance(error, psycopg.OperationalError | psycopg2.OperationalError | psycopg2.InterfaceError)


def is_busy(error: Exception) -> bool:
    """A refusal that passes: nothing is wrong with the statement, nor with who asks."""
    state = sqlstate_of(error) or ""
    return state in BUSY_SQLSTATES or state.startswith(BUSY_CLASSES)


def needs_new_connection(error: Exception, connection: Any) -> bool:
    """Whether the connection is lost, or leads to a server that takes no writes: a new one may lead to another."""
    return is_connection_lost(error) or bool(connection.closed) or sqlstate_of(error) == READ_ONLY_SQLSTATE


def asks_for_rerun(error: Exception, connection: Any) -> bool:
    """Whether to run a script again at once. Not after a time limit, which has taken the caller's time already."""
    return needs_new_connection(error, connection) or sqlstate_of(error) in RERUN_SQLSTATES


def misses_the_schema(error: BaseException) -> bool:
    """Whether a statement does not fit the tables, as after an upgrade of horsies; class 42 also has privileges."""
    state = sqlstate_of(error) or sqlstate_of(error.__cause__) or ""
    return state.startswith("42") and state != "42501"


def lacks_history_partition(error: Exception) -> bool:
    # A check that fails has a name, and messages are in the server's language.
    diagnostics = getattr(error, "diag", None)
    return (
        sqlstate_of(error) == "23514"
        and diagnostics is not None
        and not diagnostics.constraint_name
        and str(diagnostics.table_name).startswith("horsies_task_history")
    )


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
