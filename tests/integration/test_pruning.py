"""What our tables forget, on a real database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client import ledger as ledger_client
from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.db.statement import sql_text
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import DatabaseError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import pruning
from airflow_horsies.ledger.pruning import PruneRule
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.models import AirflowTry, SubmitOutcome, TaskInstanceKey, TaskSpec
from airflow_horsies.worker.housekeeping import Housekeeper
from tests.integration.conftest import MakeHook
from tests.integration.releases import IN_PLACE

TABLES = ("submissions", "attempts", "logs", "progress", "signals", "cancel_requests", "chunks", "items")
AT_ONCE = timedelta(0)


@pytest.fixture
def own(hook: HorsiesHook) -> Iterator[psycopg.Connection]:
    migrate_ledger(hook.client)
    with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
        yield connection


def counts(own: psycopg.Connection) -> dict[str, int]:
    found = {}
    for table in TABLES:
        row = own.execute(f"SELECT count(*) FROM airflow_horsies.{table}").fetchone()
        assert row
        if row[0]:
            found[table] = row[0]
    return found


def instance(number: int) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="sales", run_id=f"r{number}", task_id="load")


def submit(hook: HorsiesHook, number: int) -> str:
    sent = hook.submit_task(TaskSpec(task_name="add"), instance(number), AirflowTry(try_number=1))
    assert sent.outcome is SubmitOutcome.SENT
    return sent.task_id


def forget_in_horsies(own: psycopg.Connection, task_ids: list[str]) -> None:
    own.execute("DELETE FROM horsies_tasks WHERE id::text = ANY(%s)", (task_ids,))


def write_attempt(own: psycopg.Connection, task_id: str, *, lines: int = 0, days_ago: float = 0) -> None:
    own.execute(
        "INSERT INTO airflow_horsies.attempts (horsies_task_id, attempt, worker_id, hostname, pid, started_at)"
        " VALUES (%s, 1, 'w', 'h', 1, now() - make_interval(secs => %s))",
        (task_id, days_ago * 86_400),
    )
    write_lines(own, task_id, lines=lines, days_ago=days_ago)


def write_lines(own: psycopg.Connection, task_id: str, *, lines: int, days_ago: float = 0) -> None:
    own.execute(
        "INSERT INTO airflow_horsies.logs (horsies_task_id, attempt, line_number, logged_at, level, line)"
        " SELECT %s, 1, number, now() - make_interval(secs => %s), 'INFO', 'line'"
        " FROM generate_series(1, %s) AS number",
        (task_id, days_ago * 86_400, lines),
    )


def write_signal(own: psycopg.Connection, task_id: str) -> None:
    own.execute("INSERT INTO airflow_horsies.signals (horsies_task_id, signal) VALUES (%s, 'CANCEL')", (task_id,))


def test_what_belongs_to_nobody_any_more_goes_from_every_table(hook: HorsiesHook, own: psycopg.Connection) -> None:
    """Each of these has neither a submission nor an attempt, as after a cancel of a task on a plain worker."""
    for _ in range(3):
        write_signal(own, str(uuid.uuid4()))
        own.execute("INSERT INTO airflow_horsies.cancel_requests (horsies_task_id) VALUES (%s)", (uuid.uuid4(),))
        write_lines(own, str(uuid.uuid4()), lines=2)
        own.execute(
            "INSERT INTO airflow_horsies.progress (horsies_task_id, attempt, done) VALUES (%s, 1, 1)", (uuid.uuid4(),)
        )
    prune_ledger(hook.client)
    assert counts(own) == {"signals": 3, "logs": 6, "progress": 3, "cancel_requests": 3}, "what is a moment old stays"
    prune_ledger(hook.client, older_than=AT_ONCE)
    assert counts(own) == {}


def write_chunk(own: psycopg.Connection, task_id: str, *, items: int) -> None:
    own.execute(
        "INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places)"
        " VALUES (%s, 'add', %s, '', '{}')",
        (task_id, items),
    )
    own.execute(
        "INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, finished_at)"
        " SELECT %s, number, 'COMPLETED', 1, 1, now() FROM generate_series(0, %s - 1) AS number",
        (task_id, items),
    )


def test_chunks_and_their_items_go_with_their_task_page_by_page(
    hook: HorsiesHook, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE_ITEMS", 10)
    ids = [submit(hook, number) for number in range(4)]
    for task_id in ids:
        write_chunk(own, task_id, items=25)
    # Of no submission.
    write_chunk(own, str(uuid.uuid4()), items=3)
    forget_in_horsies(own, ids[1:])
    prune_ledger(hook.client)
    assert counts(own) == {"submissions": 4, "chunks": 5, "items": 103}, "what is a moment old stays"
    assert prune_ledger(hook.client, older_than=AT_ONCE) == 3
    assert counts(own) == {"submissions": 1, "chunks": 1, "items": 25}


def test_a_chunk_that_never_ran_goes_with_its_task(hook: HorsiesHook, own: psycopg.Connection) -> None:
    """Of enqueue_items: it expired before a worker started it."""
    ids = hook.enqueue_items(TaskSpec(task_name="add"), [{"a": number} for number in range(6)], chunk_size=2)
    prune_ledger(hook.client, older_than=AT_ONCE)
    assert counts(own) == {"chunks": 3}
    forget_in_horsies(own, ids[1:])
    prune_ledger(hook.client)
    assert counts(own) == {"chunks": 1}


def test_few_of_the_items_that_are_kept_are_read(own: psycopg.Connection) -> None:
    for _ in range(100):
        write_chunk(own, str(uuid.uuid4()), items=200)
    own.execute("ANALYZE airflow_horsies.items")
    query = sql_text(PACKAGE, "read_prunable")
    params = {"after": None, "limit": pruning.PAGE_IDS, "older_than_seconds": 86_400}
    row = own.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode(), params).fetchone()
    assert row
    assert rows_of(row[0][0]["Plan"], "items") < 1_000, "of 20,000"


def rows_of(plan: Mapping[str, Any], table: str) -> float:
    """How many rows of a table a plan has read."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return float(own + sum(rows_of(part, table) for part in plan.get("Plans", ())))


def test_what_belongs_to_a_task_that_horsies_keeps_stays(hook: HorsiesHook, own: psycopg.Connection) -> None:
    task_id = submit(hook, 1)
    write_attempt(own, task_id, lines=3, days_ago=100)
    write_signal(own, task_id)
    assert prune_ledger(hook.client, older_than=AT_ONCE) == 0
    assert counts(own) == {"submissions": 1, "attempts": 1, "logs": 3, "signals": 1}


def test_old_lines_go_even_where_their_task_is_kept_for_ever(hook: HorsiesHook, own: psycopg.Connection) -> None:
    old, young = submit(hook, 1), submit(hook, 2)
    write_attempt(own, old, lines=3, days_ago=15)
    write_attempt(own, young, lines=3, days_ago=13)
    prune_ledger(hook.client, lines_older_than=timedelta(days=14))
    assert counts(own) == {"submissions": 2, "attempts": 2, "logs": 3}
    assert [line.number for line in hook.read_lines(young)] == [1, 2, 3]


def test_an_attempt_that_runs_for_weeks_keeps_its_young_lines(hook: HorsiesHook, own: psycopg.Connection) -> None:
    task_id = submit(hook, 1)
    write_attempt(own, task_id, lines=3, days_ago=20)
    own.execute("UPDATE airflow_horsies.logs SET logged_at = now() WHERE line_number = 3")
    prune_ledger(hook.client, lines_older_than=timedelta(days=14))
    assert [line.number for line in hook.read_lines(task_id)] == [3]


def test_many_are_pruned_page_by_page_and_each_page_is_committed(
    hook: HorsiesHook, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE_IDS", 4)
    monkeypatch.setattr(pruning, "PAGE_LINES", 10)
    ids = [submit(hook, number) for number in range(10)]
    for task_id in ids:
        write_attempt(own, task_id, lines=7)
    kept, gone = ids[:3], ids[3:]
    forget_in_horsies(own, gone)
    seen: set[int] = set()
    prune_page = pruning.prune_page

    def watched(*args: object, **options: object) -> object:
        seen.add(counts(own)["logs"])
        return prune_page(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pruning, "prune_page", watched)
    assert prune_ledger(hook.client, older_than=AT_ONCE) == len(gone)
    assert counts(own) == {"submissions": 3, "attempts": 3, "logs": 21}
    assert {line.horsies_task_id for number in range(10) for line in hook.read_submissions(instance(number))} == set(
        kept
    )
    assert len(seen) > 4, "others see how it goes on"


def test_a_pruner_waits_for_another_one_and_says_so_in_the_end(
    hook: HorsiesHook, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_client, "MAX_PRUNE_WAITS", 3)
    with own.transaction():
        own.execute("SELECT pg_advisory_xact_lock(hashtextextended('airflow_horsies.pruning', 0))")
        with pytest.raises(DatabaseError, match=r"Another process has been pruning"):
            prune_ledger(hook.client)
    assert prune_ledger(hook.client) == 0


def test_nobody_who_submits_waits_for_a_pruner(hook: HorsiesHook, own: psycopg.Connection, make_hook: MakeHook) -> None:
    """In the middle of a page, with everything removed and nothing committed."""
    gone = [submit(hook, number) for number in range(3)]
    forget_in_horsies(own, gone)
    with own.transaction():
        for name, params in (
            ("lock_pruning", {}),
            ("prune_tasks", {"ids": gone, "older_than_seconds": 0}),
        ):
            own.execute(_sql(name), params)
        other = make_hook()
        other.client.run(_fail_where_it_would_wait)
        submit(other, 100)
        cleared = other.submit_task(TaskSpec(task_name="add"), instance(0), AirflowTry(try_number=2, clear_number=1))
        assert cleared.outcome is SubmitOutcome.SENT
        other.cancel_task(cleared.task_id)
    assert counts(own)["submissions"] == 2


def test_submissions_under_a_busy_pruner_are_all_recorded(
    hook: HorsiesHook, own: psycopg.Connection, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE_IDS", 10)
    stop = threading.Event()
    pruned: list[int] = []
    failed: list[Exception] = []
    pruner = make_hook()

    def prune() -> None:
        while not stop.is_set():
            try:
                pruned.append(prune_ledger(pruner.client, older_than=AT_ONCE))
            except Exception as error:
                failed.append(error)
                return

    thread = threading.Thread(target=prune)
    thread.start()
    try:
        ids = []
        for number in range(150):
            ids.append(submit(hook, number))
            if number % 3 == 0:
                forget_in_horsies(own, [ids[-1]])
    finally:
        time.sleep(0.2)
        stop.set()
        thread.join(60)
    assert failed == []
    assert sum(pruned) + prune_ledger(hook.client, older_than=AT_ONCE) == 50
    recorded = {row[0] for row in own.execute("SELECT horsies_task_id::text FROM airflow_horsies.submissions")}
    assert recorded == {task_id for number, task_id in enumerate(ids) if number % 3}


def _sql(name: str) -> str:
    from airflow_horsies.db.statement import sql_text

    return sql_text("airflow_horsies.ledger", name)


def _fail_where_it_would_wait():  # type: ignore[no-untyped-def]
    from airflow_horsies.db.statement import Statement

    yield Statement("SELECT set_config('lock_timeout', '2s', FALSE)")


@pytest.mark.parametrize("release", [IN_PLACE], indirect=True)
def test_nothing_is_pruned_while_a_cutover_is_pending(
    hook: HorsiesHook, own: psycopg.Connection, postgres: EmbeddedPostgres, database: str
) -> None:
    """A task on its way to the history is in neither table."""
    moving = submit(hook, 1)
    environ = {**os.environ, "HORSIES_DATABASE_URL": postgres.dsn(database, scheme="postgresql+psycopg")}
    script = Path(__file__).with_name("upstream_init.py")
    subprocess.run([sys.executable, script], env=environ, check=True, capture_output=True)
    own.execute("UPDATE airflow_horsies.submissions SET submitted_at = now() - interval '30 days'")
    forget_in_horsies(own, [moving])
    Housekeeper(hook.settings.database, PruneRule(), 1, sleep=lambda seconds: None).prune_tables()
    assert counts(own) == {"submissions": 1}
