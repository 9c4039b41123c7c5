"""The meaning of driver errors."""

from __future__ import annotations

from typing import Any

import psycopg
import psycopg2

DRIVER_ERRORS: tuple[type[Exception], ...] = (psycopg.Error, psycopg2.Error)
# A serialisation failure, a deadlock, or concurrent first claims of an idempotency key: nothing was committed.
RERUN_SQLSTATES = frozenset({"40001", "40P01", "23505"})
# No server, or a lost connection: a shutdown, a start, an idle timeout, no free connection. Class 08 is the same.
LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
# A server that accepts no writes now: a standby, for example after a failover, or one with a full disk.
READ_ONLY_SQLSTATE = "25006"
# A lock timeout, and a statement that was cancelled or took too long.
BUSY_SQLSTATES = frozenset({"55P03", "57014", READ_ONLY_SQLSTATE})
# Conflicts between transactions, and exhausted resources.
BUSY_CLASSES = ("40", "53")


def sqlstate_of(error: BaseException | None) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def is_connection_lost(error: Exception) -> bool:
    """Whether there is no server or the connection was lost; also any operational error without a state."""
    state = sqlstate_of(error)
    if state is not None:
        return state.startswith("08") or state in LOST_SQLSTATES
    return isinstance(error, psycopg.OperationalError | psycopg2.OperationalError | psycopg2.InterfaceError)


def is_busy(error: Exception) -> bool:
    """A refusal that passes: nothing is wrong with the statement, nor with who asks."""
    state = sqlstate_of(error) or ""
    return state in BUSY_SQLSTATES or state.startswith(BUSY_CLASSES)


def needs_new_connection(error: Exception, connection: Any) -> bool:
    """Whether the connection is lost or its server accepts no writes: a new connection may reach another server."""
    return is_connection_lost(error) or bool(connection.closed) or sqlstate_of(error) == READ_ONLY_SQLSTATE


def should_rerun(error: Exception, connection: Any) -> bool:
    """Whether to run a script again at once. Not after a time limit, which has already used the caller's time."""
    return needs_new_connection(error, connection) or sqlstate_of(error) in RERUN_SQLSTATES


def is_schema_mismatch(error: BaseException) -> bool:
    """Whether a statement does not match the tables, as after an upgrade of horsies; 42501 is a missing privilege."""
    state = sqlstate_of(error) or sqlstate_of(error.__cause__) or ""
    return state.startswith("42") and state != "42501"


def lacks_history_partition(error: Exception) -> bool:
    # A failed check constraint has a name, a missing partition has none; messages are in the language of the server.
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
