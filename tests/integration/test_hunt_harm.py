"""Harm that chunks, their pages, repair and the lean worker do to what they live in."""

from __future__ import annotations

import threading
import time
import tracemalloc
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.batch import BatchPlaces
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.db.statement import Statement, sql_text
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import items as ledger_items
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.models import TaskSpec
from tests.integration.chunk_rig import INSTANCE, batch, submit, tried
from tests.integration.releases import MOVED
from tests.integration.test_items import claim_task
from tests.integration.test_ui_scale import NO_SESSION, RIGHTS, answer
from tests.integration.worker_rig import HERE, MakeRig, Rig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes import instance as instance_routes

pytest.importorskip("horsies")

AT_ONCE = timedelta(0)
on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


@pytest.fixture
def own(hook: HorsiesHook) -> Iterator[psycopg.Connection]:
    migrate_ledger(hook.client)
    with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
        yield connection


def scalar(own: psycopg.Connection, query: str, *params: Any) -> Any:
    row = own.execute(query, params or None).fetchone()  # type: ignore[arg-type]
    assert row
    return row[0]


def ended(number: int) -> ItemOutcome:
    now = datetime.now(UTC)
    return ItemOutcome(
        number=number, attempt=1, tries=1, started_at=now, finished_at=now, outcome="COMPLETED", value="1"
    )


# -- locks -----------------------------------------------------------------------------------------------------------


@on_one_release
def test_a_frozen_worker_keeps_the_lock_of_its_chunk_for_a_limited_time(
    hook: HorsiesHook, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the transaction of a submission: 'The server may keep the connection of a host without power for hours'."""
    claim = claim_task(own, hook.enqueue_task(TaskSpec(task_name="add[]", kwargs={"items": []})))
    limits: list[Any] = []
    read = ledger_items.read_dropped

    def look(task_id: str) -> Any:
        rows = yield Statement("SELECT current_setting('idle_in_transaction_session_timeout') AS idle", {})
        limits.append(rows[0]["idle"])
        return (yield from read(task_id))

    monkeypatch.setattr(ledger_items, "read_dropped", look)
    client = WorkerClient(hook.settings.database)
    client.report_items(claim, [ended(0)])
    client.close()
    assert limits != ["0"]


@on_one_release
@pytest.mark.parametrize("table", ["items", "chunks"])
def test_a_chunk_can_be_cancelled_from_the_page_while_our_table_is_locked(
    hook: HorsiesHook, own: psycopg.Connection, table: str
) -> None:
    (task_id,) = hook.client.submit_batch(batch(range(4), 4), INSTANCE, tried()).task_ids
    claim = claim_task(own, task_id)
    client = WorkerClient(hook.settings.database)
    client.begin_chunk(claim)

    def report() -> None:
        try:
            client.report_items(claim, [ended(0)])
        except HorsiesError:
            pass

    with psycopg.connect(**hook.settings.database.connect_args) as locker:
        locker.execute(f"LOCK TABLE airflow_horsies.{table} IN ACCESS EXCLUSIVE MODE")
        reporting = threading.Thread(target=report)
        reporting.start()
        time.sleep(1)
        try:
            with PageClient(hook.settings) as page:
                page.release_tasks([task_id], INSTANCE)
        finally:
            locker.rollback()
            reporting.join()
            client.close()


# -- growth ----------------------------------------------------------------------------------------------------------


@on_one_release
def test_a_chunk_that_never_ran_is_pruned(hook: HorsiesHook, own: psycopg.Connection) -> None:
    """Of enqueue_items: it expired before a worker started it, and horsies has forgotten it."""
    hook.enqueue_items(TaskSpec(task_name="add"), [{"a": n} for n in range(6)], chunk_size=2)
    own.execute("DELETE FROM horsies_tasks")
    prune_ledger(hook.client, older_than=AT_ONCE)
    assert scalar(own, "SELECT count(*) FROM airflow_horsies.chunks") == 0


@on_one_release
def test_pruning_reads_few_of_the_items_it_keeps(own: psycopg.Connection) -> None:
    """As of the lines: 'One index lookup per task, however many lines it has.'"""
    own.execute(
        "INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places)"
        " SELECT gen_random_uuid(), 'add', 500, '', '{}' FROM generate_series(1, 100)"
    )
    own.execute(
        "INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, finished_at, value)"
        " SELECT horsies_task_id, number, 'COMPLETED', 1, 1, now(), repeat('x', 300)"
        " FROM airflow_horsies.chunks, generate_series(0, 499) AS number"
    )
    own.execute("ANALYZE airflow_horsies.items")
    read = sql_text(PACKAGE, "read_prunable")
    plan = scalar_plan(own, read, {"after": None, "limit": 500, "older_than_seconds": 86_400})
    assert rows_of(plan, "items") < 1_000, "50,000 items of 100 chunks that are kept"


def scalar_plan(own: psycopg.Connection, query: Any, params: dict[str, Any]) -> Any:
    row = own.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", params).fetchone()
    assert row
    return row[0][0]["Plan"]


def rows_of(plan: dict[str, Any], table: str) -> float:
    here = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return float(here + sum(rows_of(part, table) for part in plan.get("Plans", ())))


@on_one_release
def test_replaced_requests_for_a_repair_keep_no_items(hook: HorsiesHook, own: psycopg.Connection) -> None:
    submit(hook, range(1_000), 100)
    for _ in range(20):
        request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann", items=range(1_000))
    kept = scalar(own, "SELECT sum(length(works)) FROM airflow_horsies.repairs")
    assert kept <= 2 * 32_000, f"{kept:,} bytes of one open request"


# -- pages and trigger -----------------------------------------------------------------------------------------------


@on_one_release
def test_page_of_a_large_batch_that_was_cleared_several_times(
    hook: HorsiesHook, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_routes, "read_tries", lambda *_: [])
    monkeypatch.setattr(instance_routes, "page_client", lambda **_: PageClient(hook.settings))
    small, large = replace(INSTANCE, run_id="small"), replace(INSTANCE, run_id="large")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    hook.client.submit_batch(batch(range(1_000), 100), small, tried())
    for life in range(1, 6):
        again = tried(life, run_started_at=noon + timedelta(minutes=life), clear_number=life - 1)
        hook.client.submit_batch(batch(range(100_000), 100), large, again)
    own.execute("ANALYZE")

    def fastest(key: Any) -> float:
        took = []
        for _ in range(7):
            began = time.perf_counter()
            answer(instance_routes.read_instance(key, NO_SESSION, RIGHTS, position=5))
            took.append(time.perf_counter() - began)
        return min(took)

    fastest(small)
    ratio = fastest(large) / fastest(small)
    assert ratio < 3, f"{ratio:.1f} times as long as the page of 1,000 items"


def test_places_of_a_large_batch_are_small_in_the_triggerer() -> None:
    """What a trigger that shows log lines keeps as long as it waits; two integers an item are 0.8 MB."""
    ids = [f"{number:036}" for number in range(2_000)]
    tasks, numbers = array("i", [n // 50 for n in range(100_000)]), array("i", [n % 50 for n in range(100_000)])
    places = BatchPlaces(1, ids, tasks, numbers)
    tracemalloc.start()
    kept = places.by_item()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 100_000
    assert size < 4e6, f"{size / 1e6:.1f} MB for each trigger"


# -- workers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("hunt_harm", app="harm_tasks:app", processes=2)


def test_an_idle_worker_gets_the_tasks_that_another_cannot_start(rig: Rig, tmp_path: Path) -> None:
    """Two workers with two processes each, and four long tasks."""
    info = rig.postgres.conninfo(rig.hook.settings.database.connect_args["dbname"])
    environ = {"PYTHONPATH": str(HERE)}
    second = HorsiesWorker(
        "harm_tasks:app",
        conninfo=info,
        processes=2,
        log=tmp_path / "second.log",
        folder=tmp_path,
        environ=environ,
        command=SPARK_WORKER,
    )
    with second:
        second.wait_live()
        rig.hook.wait(rig.hook.enqueue_tasks([TaskSpec(task_name="nap", kwargs={"seconds": 0.1})] * 8))
        time.sleep(3)
        ids = rig.hook.enqueue_items(TaskSpec(task_name="nap"), [{"seconds": 4.0}] * 8, chunk_size=2)
        rig.hook.wait(ids, timeout_seconds=120)
    tasks = [rig.hook.read_task(task_id) for task_id in ids]
    waits = [(task.started_at - task.enqueued_at).total_seconds() for task in tasks if task.started_at]
    assert len({task.worker_id for task in tasks}) == 2, f"one worker ran all four; they waited {waits} s"
