"""A table that is locked for long costs a worker's child one backend, not one more every half minute."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from airflow_horsies.db.limits import Limits
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.pruning import PruneRule
from airflow_horsies.ledger.schema import migrate

pytest.importorskip("horsies")

from airflow_horsies.client import reporting
from airflow_horsies.worker import reporter as reporter_module
from airflow_horsies.worker.attempt import Assignment, RunningAttempt
from airflow_horsies.worker.housekeeping import Housekeeper
from airflow_horsies.worker.logs import AttemptLog
from airflow_horsies.worker.reporter import Reporter, database_of

QUICK = Limits(lock_seconds=0.3, statement_seconds=0.6)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in life, only much faster."""
    monkeypatch.setattr(reporting, "LIMITS", QUICK)
    monkeypatch.setattr(reporter_module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(reporter_module, "RETRY_SECONDS", 0.2)


@pytest.fixture
def url(hook: HorsiesHook, postgres: EmbeddedPostgres, database: str) -> str:
    hook.client.run(migrate)
    info = postgres.conninfo(database)
    return f"postgresql://{info['user']}:{info['password']}@{info['host']}:{info['port']}/{database}"


@pytest.fixture
def locker(postgres: EmbeddedPostgres, database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(**postgres.conninfo(database)) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def watcher(postgres: EmbeddedPostgres, database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        yield connection


def waiting_backends(watcher: psycopg.Connection) -> int:
    row = watcher.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'airflow_horsies worker' "
        "AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    count: int = row[0]
    return count


def test_a_reporter_has_one_backend_however_long_a_table_is_locked(
    url: str, locker: psycopg.Connection, watcher: psycopg.Connection
) -> None:
    assignment = Assignment(str(uuid.uuid4()), "w1", datetime.now(UTC), None)
    attempt = RunningAttempt(assignment, AttemptLog(100))
    reporter = Reporter(database_of(url), stop=lambda attempt, reason: None)
    locker.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
    reporter.start()
    reporter.begin(attempt)
    seen = []
    for _ in range(40):
        time.sleep(0.1)
        seen.append(waiting_backends(watcher))
    locker.rollback()
    attempt.end("COMPLETED")
    reporter.end(attempt)
    assert attempt.reported.wait(10)
    assert max(seen) == 1, seen


def test_housekeeping_gives_up_where_a_table_is_locked(
    url: str, locker: psycopg.Connection, watcher: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    housekeeper = Housekeeper(database_of(url), PruneRule(), 60.0, sleep=lambda seconds: None)
    locker.execute("LOCK TABLE airflow_horsies.cancel_requests IN ACCESS EXCLUSIVE MODE")
    # Whoever waits without a limit has the lock after a while, and says nothing.
    end_of_lock = threading.Timer(5.0, locker.rollback)
    end_of_lock.start()
    housekeeper.prune_tables()
    end_of_lock.cancel()
    assert ["lock timeout" in record.message for record in caplog.records] == [True]
    assert waiting_backends(watcher) == 0
