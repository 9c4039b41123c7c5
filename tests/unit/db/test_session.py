from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors

from airflow_horsies.db import session as session_module
from airflow_horsies.db.connection import Database
from airflow_horsies.db.session import RERUN_PAUSES_SECONDS, Session
from airflow_horsies.db.statement import Rows, Script, Statement
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError, HorsiesError

DATABASE = Database(connect_args={"host": "db", "dbname": "work"}, listen_args={})
LOST = psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")


@pytest.mark.parametrize("error", [errors.QueryCanceled("time limit"), errors.LockNotAvailable("lock")])
def test_time_limit_is_told_at_once_and_leaves_the_retry_to_whoever_waits(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opened, log = session(monkeypatch, error)
    with pytest.raises(DatabaseBusy):
        opened.run(ask)
    assert log == ["connect", "ask", "rollback"]


class FakeConnection:
    """A driver's connection that fails as told, once per listed error."""

    def __init__(self, log: list[str], failing: list[Exception], failing_commits: list[Exception]) -> None:
        self.log, self.failing, self.failing_commits = log, failing, failing_commits
        self.closed = False
        self.description = [("n",)]

    def cursor(self) -> FakeConnection:
        return self

    def __enter__(self) -> FakeConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def execute(self, sql: str, params: Any) -> None:
        self.log.append(sql)
        if self.failing:
            raise self.failing.pop(0)

    def fetchall(self) -> list[tuple[int]]:
        return [(7,)]

    def commit(self) -> None:
        self.log.append("commit")
        if self.failing_commits:
            raise self.failing_commits.pop(0)

    def rollback(self) -> None:
        self.log.append("rollback")

    def close(self) -> None:
        self.closed = True
        self.log.append("close")


def session(
    monkeypatch: pytest.MonkeyPatch, *failing: Exception, commits: tuple[Exception, ...] = ()
) -> tuple[Session, list[str]]:
    log: list[str] = []
    errors_left, commits_left = list(failing), list(commits)

    def connect(self: Database, args: object = None) -> FakeConnection:
        log.append("connect")
        return FakeConnection(log, errors_left, commits_left)

    monkeypatch.setattr(Database, "connect", connect)
    monkeypatch.setattr(session_module, "time", SimpleNamespace(sleep=lambda seconds: log.append("pause")))
    return Session(DATABASE), log


def ask() -> Script[Rows]:
    return (yield Statement("ask"))


def test_script_runs_in_one_transaction_on_a_kept_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = session(monkeypatch)
    assert opened.run(ask) == opened.run(ask) == [{"n": 7}]
    assert log == ["connect", "ask", "commit", "ask", "commit"]


@pytest.mark.parametrize("error", [errors.SerializationFailure(), errors.DeadlockDetected(), errors.UniqueViolation()])
def test_script_runs_again_where_postgres_asks_for_it(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    opened, log = session(monkeypatch, error)
    assert opened.run(ask) == [{"n": 7}]
    assert log == ["connect", "ask", "rollback", "pause", "ask", "commit"]


def test_script_runs_again_on_a_new_connection_where_the_old_one_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = session(monkeypatch, LOST)
    assert opened.run(ask) == [{"n": 7}]
    assert log == ["connect", "ask", "rollback", "close", "pause", "connect", "ask", "commit"]


def test_script_runs_again_where_its_commit_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = session(monkeypatch, commits=(LOST,))
    assert opened.run(ask) == [{"n": 7}]
    assert log.count("commit") == log.count("connect") == 2


def test_script_gives_up_after_some_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = len(RERUN_PAUSES_SECONDS) + 1
    opened, log = session(monkeypatch, *[errors.DeadlockDetected("again") for _ in range(runs)])
    with pytest.raises(DatabaseError, match="again"):
        opened.run(ask)
    assert log.count("ask") == runs


def test_statement_that_postgres_refuses_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = session(monkeypatch, errors.UndefinedTable("no table"))
    with pytest.raises(DatabaseError, match="no table"):
        opened.run(ask)
    assert log == ["connect", "ask", "rollback"]


def test_error_of_a_script_rolls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, log = session(monkeypatch)

    def refuse() -> Iterator[Any]:
        yield Statement("ask")
        raise HorsiesError("no")

    with pytest.raises(HorsiesError, match="no"):
        opened.run(refuse)  # type: ignore[arg-type]
    assert log == ["connect", "ask", "rollback"]
