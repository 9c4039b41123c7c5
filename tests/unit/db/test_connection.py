from __future__ import annotations

import psycopg
import psycopg2
import pytest
from psycopg import errors

from airflow_horsies.db.connection import Database, args_of_url
from airflow_horsies.exceptions import AccessDenied, DatabaseBusy, DatabaseError, DatabaseUnreachable, HorsiesError

SECRET = "s3cret-word"
DATABASE = Database(
    connect_args={"host": "db", "dbname": "work", "user": "airflow", "password": SECRET}, listen_args={}
)
LOST = psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")


@pytest.mark.parametrize(
    ("error", "ours", "says"),
    [
        (
            psycopg.OperationalError('FATAL:  password authentication failed for user "x"'),
            AccessDenied,
            "Cannot log in",
        ),
        (errors.InvalidPassword("no"), AccessDenied, r"Cannot log in to .*: no\. Check"),
        (errors.InsufficientPrivilege("permission denied for table horsies_tasks"), AccessDenied, "horsies_tasks"),
        (errors.InvalidCatalogName("no such database"), DatabaseUnreachable, "Cannot find"),
        (
            LOST,
            DatabaseUnreachable,
            r"Cannot reach .*: server closed the connection unexpectedly\. Check that the server runs",
        ),
        (errors.AdminShutdown("bye"), DatabaseUnreachable, "Cannot reach"),
        (errors.TooManyConnections("full"), DatabaseUnreachable, "Cannot reach"),
        (errors.QueryCanceled("statement timeout"), DatabaseBusy, "now: statement timeout. Try again later"),
        (errors.LockNotAvailable("lock timeout"), DatabaseBusy, "Cannot run a statement"),
        (errors.DiskFull("no space left"), DatabaseBusy, "Cannot run a statement"),
        (errors.OutOfMemory("out of memory"), DatabaseBusy, "Cannot run a statement"),
        (errors.ConfigurationLimitExceeded("out of locks"), DatabaseBusy, "Cannot run a statement"),
        (errors.SerializationFailure("conflict"), DatabaseBusy, "Cannot run a statement"),
        (errors.DeadlockDetected("deadlock"), DatabaseBusy, "Cannot run a statement"),
        (errors.CheckViolation("a check of somebody"), DatabaseError, "failed on .*: a check"),
        (errors.UndefinedColumn("no column"), DatabaseError, "failed on .*: no column"),
        (psycopg.ProgrammingError(""), DatabaseError, "failed on .*: ProgrammingError"),
        (psycopg2.OperationalError("could not connect"), DatabaseUnreachable, "Cannot reach"),
        (psycopg2.InterfaceError("connection already closed"), DatabaseUnreachable, "Cannot reach"),
        (psycopg2.ProgrammingError("syntax"), DatabaseError, "A statement failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_driver_errors_become_ours_from_their_cause(error: Exception, ours: type[HorsiesError], says: str) -> None:
    with pytest.raises(ours, match=says) as caught, DATABASE.translated():
        raise error
    assert (type(caught.value), caught.value.__cause__) == (ours, error)
    assert "database work of airflow at db:5432" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), DATABASE.translated():
        raise KeyError("x")


def test_urls_are_read_as_sqlalchemy_writes_them() -> None:
    for scheme in ("postgresql", "postgresql+psycopg", "postgres"):
        assert args_of_url(f"{scheme}://me:p%40ss@host:5433/horsies") == {
            "user": "me",
            "password": "p@ss",
            "host": "host",
            "port": "5433",
            "dbname": "horsies",
        }


@pytest.mark.parametrize("url", ["mysql://me:secret@host/x", "secret", "postgresql://me:secret@host:no=/x?secret=%"])
def test_a_url_that_is_none_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="does not name a Postgres database") as caught:
        args_of_url(url)
    assert "secret" not in str(caught.value)
