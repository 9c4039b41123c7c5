"""The outcomes of items, written only while the worker has the claim; on both generations of horsies' tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from airflow_horsies.client import reporting
from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.reporting import AttemptNews, Claim, ClaimState, StartedAttempt, WorkerClient
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.db.limits import Limits
from airflow_horsies.exceptions import HorsiesError, LedgerOutdated
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts, items, schema
from airflow_horsies.models import CancelOutcome, LogChunk, TaskSpec
from tests.integration.chunk_rig import INSTANCE, batch, tried

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKER = "worker-7"


def ended(number: int, *, attempt: int = 1, outcome: str = "COMPLETED", value: str | None = "1") -> ItemOutcome:
    return ItemOutcome(
        number=number, outcome=outcome, attempt=attempt, tries=1, started_at=NOW, finished_at=NOW, value=value
    )


@pytest.fixture
def own(hook: HorsiesHook) -> Iterator[psycopg.Connection]:
    migrate_ledger(hook.client)
    with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
        yield connection


@pytest.fixture
def client(hook: HorsiesHook) -> Iterator[WorkerClient]:
    made = WorkerClient(hook.settings.database)
    yield made
    made.close()


@pytest.fixture
def claim(hook: HorsiesHook, own: psycopg.Connection) -> Claim:
    return claim_task(own, hook.enqueue_task(TaskSpec(task_name="add[]", kwargs={"items": []})))


def claim_task(own: psycopg.Connection, task_id: str, *, worker: str = WORKER, retries: int = 0) -> Claim:
    row = own.execute(
        "UPDATE horsies_tasks SET status = 'RUNNING', claimed = TRUE, claimed_by_worker_id = %s, claimed_at = now(),"
        " started_at = now(), retry_count = %s WHERE id::text = %s RETURNING claimed_at",
        (worker, retries, task_id),
    ).fetchone()
    assert row
    return Claim(task_id=task_id, worker_id=worker, claimed_at=row[0])


def numbers(own: psycopg.Connection) -> list[tuple[Any, ...]]:
    return own.execute("SELECT number, attempt, value FROM airflow_horsies.items ORDER BY number").fetchall()


@pytest.mark.both_releases
def test_outcomes_are_written_once_and_only_with_the_claim(
    own: psycopg.Connection, client: WorkerClient, claim: Claim
) -> None:
    begun = client.begin_chunk(claim)
    assert begun and (begun.number, dict(begun.recorded), begun.dropped) == (1, {}, frozenset())
    assert client.report_items(claim, [ended(0), ended(2)]).claim is ClaimState.HELD
    # As after a lost connection, whose commit has come through.
    client.report_items(claim, [ended(2, value="2"), ended(3)])
    assert numbers(own) == [(0, 1, "1"), (2, 1, "1"), (3, 1, "1")]

    newer = claim_task(own, claim.task_id, worker="another", retries=1)
    assert client.report_items(claim, [ended(4)]).claim is ClaimState.LOST
    assert client.begin_chunk(claim) is None
    begun = client.begin_chunk(newer)
    assert begun and (begun.number, dict(begun.recorded)) == (2, dict.fromkeys((0, 2, 3), "COMPLETED"))
    assert [row[0] for row in numbers(own)] == [0, 2, 3]


def test_a_report_without_outcomes_writes_nothing(own: psycopg.Connection, client: WorkerClient, claim: Claim) -> None:
    """A child confirms its claim several times a second, however long an item takes."""
    client.begin_chunk(claim)
    locked = "SELECT xmax::text FROM horsies_tasks WHERE id::text = %s"
    before = own.execute(locked, (claim.task_id,)).fetchone()
    assert client.report_items(claim, []).claim is ClaimState.HELD
    assert own.execute(locked, (claim.task_id,)).fetchone() == before
    claim_task(own, claim.task_id, worker="another")
    assert client.report_items(claim, []).claim is ClaimState.LOST


@pytest.mark.both_releases
def test_the_same_worker_with_a_newer_claim_has_another_claim(
    own: psycopg.Connection, client: WorkerClient, claim: Claim
) -> None:
    claim_task(own, claim.task_id)
    assert client.report_items(claim, [ended(0)]).claim is ClaimState.LOST
    assert numbers(own) == []


@pytest.mark.both_releases
def test_a_cancelled_chunk_takes_no_more_outcomes(
    hook: HorsiesHook, own: psycopg.Connection, client: WorkerClient, claim: Claim
) -> None:
    hook.cancel_task(claim.task_id)
    assert client.report_items(claim, [ended(0)]).claim is ClaimState.CANCELLED
    assert numbers(own) == []


@pytest.mark.both_releases
def test_who_takes_the_claim_waits_for_a_write_under_way(
    own: psycopg.Connection, client: WorkerClient, claim: Claim
) -> None:
    """So that the next attempt sees every outcome that was written before it."""
    taken = threading.Event()
    with psycopg.connect(**client.session.database.connect_args) as writing:
        # In the middle of the write: the claim is locked, and nothing is committed.
        wire = client._known_wire()
        statement = wire.lock_running_task(claim.task_id, claim.worker_id, claim.claimed_at)
        assert writing.execute(statement.sql.encode(), statement.params).fetchall()

        def take() -> None:
            claim_task(own, claim.task_id, worker="another")
            taken.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(1)
        writing.commit()
        assert taken.wait(20)
        thread.join()


def test_a_suspended_worker_keeps_the_lock_of_its_chunk_for_a_limited_time(
    hook: HorsiesHook, own: psycopg.Connection, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends the task, or gives it to another worker, waits for this lock."""
    monkeypatch.setattr(reporting, "LIMITS", Limits(idle_seconds=0.5))
    suspended, resumed = threading.Event(), threading.Event()
    read = items.read_dropped

    def read_late(task_id: str) -> Any:
        dropped = yield from read(task_id)
        suspended.set()
        resumed.wait(60)
        return dropped

    monkeypatch.setattr(items, "read_dropped", read_late)
    client = WorkerClient(hook.settings.database)
    thread = threading.Thread(target=client.report_items, args=(claim, [ended(0)]))
    thread.start()
    try:
        assert suspended.wait(60)
        own.execute("SET lock_timeout = '30s'")
        own.execute("SELECT 1 FROM horsies_tasks WHERE id::text = %s FOR UPDATE", (claim.task_id,))
    finally:
        resumed.set()
        thread.join()
        client.close()
    assert numbers(own) == [(0, 1, "1")], "the report is repeated once the worker goes on"


@pytest.mark.parametrize("table", ["items", "chunks"])
def test_a_chunk_can_be_cancelled_while_its_report_waits_for_our_table(
    hook: HorsiesHook, own: psycopg.Connection, client: WorkerClient, table: str
) -> None:
    (task_id,) = hook.client.submit_batch(batch(range(4), 4), INSTANCE, tried()).task_ids
    claim = claim_task(own, task_id)
    client.begin_chunk(claim)

    def report() -> None:
        with suppress(HorsiesError):
            client.report_items(claim, [ended(0)])

    with psycopg.connect(**hook.settings.database.connect_args) as locker:
        locker.execute(f"LOCK TABLE airflow_horsies.{table} IN ACCESS EXCLUSIVE MODE")
        reporting_thread = threading.Thread(target=report)
        reporting_thread.start()
        try:
            wait_for_lock(own)
            with PageClient(hook.settings) as page:
                assert page.release_tasks([task_id], INSTANCE) == {task_id: CancelOutcome.CANCELLED}
        finally:
            locker.rollback()
            reporting_thread.join()


def wait_for_lock(own: psycopg.Connection) -> None:
    """Until the worker waits for a lock."""
    give_up = time.monotonic() + 60
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE %s"
    )
    while not own.execute(query, ("%airflow_horsies%",)).fetchone():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_dropped_items_are_told_with_each_write(own: psycopg.Connection, client: WorkerClient, claim: Claim) -> None:
    own.execute(
        "INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places, dropped)"
        " VALUES (%s, 'add', 3, '', '{}', '{1,2}')",
        (claim.task_id,),
    )
    begun = client.begin_chunk(claim)
    assert begun and begun.dropped == {1, 2}
    assert client.report_items(claim, []).dropped == {1, 2}


def test_tables_of_an_older_version_take_everything_but_chunks(
    hook: HorsiesHook, own: psycopg.Connection, client: WorkerClient, claim: Claim
) -> None:
    """Workers are upgraded before Airflow, and do not migrate."""
    own.execute(
        "DROP TABLE airflow_horsies.chunks, airflow_horsies.items, airflow_horsies.workers, airflow_horsies.repairs"
    )
    own.execute("ALTER TABLE airflow_horsies.logs DROP COLUMN item")
    own.execute("DELETE FROM airflow_horsies.migrations WHERE version >= 5")
    with pytest.raises(LedgerOutdated, match=r"version 4, and chunks need version 5\. .* 'airflow horsies db migrate'"):
        client.begin_chunk(claim)
    assert not client.record_worker(hostname="node", pid=1, release="1", features=["chunks"])
    assert not client.find_prunable()
    begun = client.begin_attempt(StartedAttempt(claim=claim, hostname="node", pid=1, started_at=NOW), AttemptNews())
    assert begun
    line = LogChunk(1, NOW, "INFO", ["a line"])
    client.report_attempt(claim.task_id, 1, AttemptNews(lines=[line]))
    read = hook.client.session.run(lambda: attempts.read_news({claim.task_id: attempts.LogCursor()}))
    assert [(known.text, known.item) for known in read[claim.task_id].lines] == [("a line", None)]
    # Once an administrator migrates, the same worker runs chunks.
    hook.client.session.run(schema.migrate)
    assert client.begin_chunk(claim)
    assert client.record_worker(hostname="node", pid=1, release="1", features=["chunks"])


def test_workers_that_were_not_seen_for_long_are_forgotten(own: psycopg.Connection, client: WorkerClient) -> None:
    for pid in (1, 2):
        client.record_worker(hostname="node", pid=pid, release="1", features=["chunks"])
    own.execute("UPDATE airflow_horsies.workers SET seen_at = now() - interval '2 days'")
    client.record_worker(hostname="node", pid=2, release="2", features=["chunks"])
    assert own.execute("SELECT pid, release, features FROM airflow_horsies.workers").fetchall() == [
        (2, "2", ["chunks"])
    ]
