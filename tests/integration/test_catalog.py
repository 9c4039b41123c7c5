"""What workers record of their tasks, and what is refused before it is sent, on real databases of real releases."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from airflow_horsies.client import accepting
from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.client.reporting import CatalogEntry, KnownKind, WorkerClient
from airflow_horsies.core.batch import BatchSpec
from airflow_horsies.exceptions import InvalidTask, TaskRefused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, SubmitOutcome, TaskInstanceKey, TaskSpec
from tests.integration.conftest import MakeHook

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
TRIED = AirflowTry(try_number=1)
HOST = "here"

pytestmark = pytest.mark.usefixtures("release")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is remembered from other tests."""
    accepting._memories.clear()
    accepting._noted.clear()
    monkeypatch.setattr(accepting, "CONFIRM_SECONDS", 3.0)
    monkeypatch.setattr(accepting, "CONFIRM_PAUSE_SECONDS", 0.05)
    yield


def sql(hook: HorsiesHook, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        cursor = connection.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []


def schema_of(**types: str) -> str:
    """A parameter whose type ends with ? is optional."""
    return json.dumps(
        {
            "type": "object",
            "properties": {name: {"type": kind.removesuffix("?")} for name, kind in types.items()},
            "required": [name for name, kind in types.items() if not kind.endswith("?")],
            "additionalProperties": False,
        }
    )


def entry(name: str, **types: str) -> CatalogEntry:
    return CatalogEntry(kind=KnownKind.TASK, name=name, queue=None, parameters=schema_of(**types), doc="What it does.")


def speak(hook: HorsiesHook, pid: int, *entries: CatalogEntry, queues: tuple[str, ...] = ("default",)) -> bool | None:
    client = WorkerClient(hook.settings.database)
    digest = repr((entries, queues)).encode()[:32].ljust(32) + str(hash(entries)).encode()
    try:
        return client.record_catalog(
            hostname=HOST, pid=pid, digest=digest, release="9.9", queues=queues, entries=entries
        )
    finally:
        client.close()


class Worker:
    """Reports itself as a worker of horsies does, until it is stopped."""

    def __init__(self, hook: HorsiesHook, pid: int, *, queues: str = "{default}") -> None:
        self._hook, self._pid, self._queues = hook, pid, queues
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Worker:
        self.report()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def report(self) -> None:
        sql(
            self._hook,
            "INSERT INTO horsies_worker_states (worker_id, snapshot_at, hostname, pid, queues, processes,"
            " tasks_running, tasks_claimed, worker_started_at, max_claim_batch, max_claim_per_worker)"
            " VALUES (%s, clock_timestamp(), %s, %s, %s::text[], 2, 0, 0, now() - interval '1 hour', 1, 1)",
            f"worker {self._pid}",
            HOST,
            self._pid,
            self._queues,
        )

    def _live(self) -> None:
        while not self._stop.wait(0.3):
            self.report()


@pytest.fixture
def worker(hook: HorsiesHook) -> Iterator[HorsiesHook]:
    """A live worker that knows one task."""
    migrate_ledger(hook.client)
    speak(hook, 1, entry("flights.count", path="string", rows="integer?"))
    with Worker(hook, 1):
        yield hook


def spec(name: str = "flights.count", **kwargs: Any) -> TaskSpec:
    return TaskSpec(task_name=name, kwargs=kwargs)


def sent(hook: HorsiesHook) -> int:
    return int(sql(hook, "SELECT count(*) FROM horsies_tasks")[0][0])


WRONG = [
    (spec("flights.cuont", path="x"), r"knows the task 'flights\.cuont' \(did you mean flights\.count\?\)"),
    (spec(), "path is missing"),
    (spec(path="x", row=1), r"row is unknown \(did you mean rows\?\)"),
    (spec(path="x", rows="many"), "rows must be an integer"),
    (spec(path=None), "path must be a text"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_what_no_live_worker_accepts_is_refused_before_it_is_sent(
    worker: HorsiesHook, wrong: TaskSpec, says: str
) -> None:
    for refuse in (
        lambda: worker.submit_task(wrong, INSTANCE, TRIED),
        lambda: worker.enqueue_task(wrong),
        lambda: worker.enqueue_tasks([spec(path="x"), wrong]),
        lambda: asyncio.run(submit_async(worker, wrong)),
        lambda: worker.submit_items(spec(wrong.task_name), [{"path": "x"}, dict(wrong.kwargs)], INSTANCE, TRIED),
        lambda: worker.enqueue_items(spec(wrong.task_name), [dict(wrong.kwargs)], chunk_size=2),
    ):
        with pytest.raises(TaskRefused, match=says) as caught:
            refuse()
        assert isinstance(caught.value, InvalidTask)
        assert "Nothing was sent" in str(caught.value)
    assert sent(worker) == 0
    assert worker.read_submissions(INSTANCE) == []


async def submit_async(hook: HorsiesHook, wanted: TaskSpec) -> SubmitOutcome:
    client = await HorsiesHook("horsies_test", connection=hook.connection).async_client()
    (result,) = await client.submit_tasks([wanted], INSTANCE, TRIED)
    return result.outcome


def test_what_a_live_worker_accepts_is_sent(worker: HorsiesHook) -> None:
    assert worker.submit_task(spec(path="x", rows="7"), INSTANCE, TRIED).outcome is SubmitOutcome.SENT
    worker.enqueue_task(spec(path="x"))
    assert worker.submit_items(spec(), [{"path": "x"}], INSTANCE, AirflowTry(try_number=2)).size == 1
    # Our own tasks, and those of other queues, are not looked up.
    worker.enqueue_task(spec("airflow_horsies.begin"))
    worker.enqueue_task(TaskSpec(task_name="anything", queue="other"))


def test_nothing_is_refused_where_no_worker_has_told_what_it_knows(hook: HorsiesHook) -> None:
    assert hook.submit_task(spec("anything"), INSTANCE, TRIED).outcome is SubmitOutcome.SENT
    with Worker(hook, 1):
        hook.enqueue_task(spec("anything"))
    # A worker that has told and ended long ago.
    speak(hook, 1, entry("flights.count", path="string"))
    sql(hook, "UPDATE airflow_horsies.catalog_workers SET seen_at = now() - interval '10 minutes'")
    accepting._memories.clear()
    hook.enqueue_task(spec("anything"))


def test_a_worker_of_the_queue_that_has_not_told_may_know_the_task(
    worker: HorsiesHook, caplog: pytest.LogCaptureFixture
) -> None:
    with Worker(worker, 2), caplog.at_level(logging.WARNING, accepting.__name__):
        for number in range(3):
            worker.enqueue_task(spec("flights.other", number=number))
    (record,) = caplog.records
    assert "a worker has not told: process 2 on here" in record.getMessage()
    assert sent(worker) == 3


def test_one_of_two_apps_is_enough(worker: HorsiesHook) -> None:
    speak(worker, 2, entry("flights.count", place="string"), entry("flights.load"))
    with Worker(worker, 2):
        worker.enqueue_task(spec(path="x"))
        worker.enqueue_task(spec(place="x"))
        worker.enqueue_task(spec("flights.load"))
        with pytest.raises(TaskRefused):
            worker.enqueue_task(spec(path="x", place="y"))
        known = worker.read_catalog(name="flights.count")
    assert [item.signature for item in known if item.is_disputed] == [
        "place: string",
        "path: string, rows: integer = …",
    ]


def test_workers_of_another_queue_do_not_count(worker: HorsiesHook) -> None:
    speak(worker, 2, entry("flights.load"), queues=("other",))
    with Worker(worker, 2, queues="{other}"):
        worker.enqueue_task(TaskSpec(task_name="flights.load", queue="other"))
        with pytest.raises(TaskRefused, match=r"no live worker of queue 'default' knows the task 'flights\.load'"):
            worker.enqueue_task(spec("flights.load"))
        with pytest.raises(TaskRefused, match=r"They know flights\.load"):
            worker.enqueue_task(TaskSpec(task_name="flights.count", queue="other"))


def test_a_worker_that_ended_a_moment_ago_refuses_nothing(hook: HorsiesHook) -> None:
    """It counts as live, but reports no more."""
    migrate_ledger(hook.client)
    speak(hook, 1, entry("flights.count", path="string"))
    Worker(hook, 1).report()
    hook.enqueue_task(spec("flights.new"))
    assert sent(hook) == 1


def test_a_worker_that_is_upgraded_while_a_submission_waits_is_heard(worker: HorsiesHook) -> None:
    """The old worker still reports; the new one tells what it knows in between."""
    begun = time.monotonic()

    def upgrade() -> None:
        time.sleep(0.1)
        speak(worker, 1, entry("flights.new"))

    thread = threading.Thread(target=upgrade)
    thread.start()
    worker.enqueue_task(spec("flights.new"))
    thread.join()
    assert time.monotonic() - begun < 3
    assert sent(worker) == 1


def test_what_is_under_way_is_not_checked_again(worker: HorsiesHook) -> None:
    first = worker.submit_task(spec(path="x"), INSTANCE, TRIED)
    keyed = TaskSpec(task_name="flights.count", kwargs={"path": "y"}, task_id="00000000-0000-7000-8000-000000000001")
    worker.enqueue_task(keyed)
    speak(worker, 1, entry("flights.count", place="string"))
    accepting._memories.clear()
    again = worker.submit_task(spec(path="x"), INSTANCE, AirflowTry(try_number=2))
    assert (again.task_id, again.outcome) == (first.task_id, SubmitOutcome.REATTACHED)
    assert worker.enqueue_task(keyed) == keyed.task_id
    with pytest.raises(TaskRefused, match="path is unknown"):
        worker.submit_task(spec(path="z"), INSTANCE, AirflowTry(try_number=3))


def test_a_look_is_remembered_for_a_while(worker: HorsiesHook) -> None:
    worker.enqueue_task(spec(path="x"))
    sql(worker, "DROP TABLE airflow_horsies.catalog_workers")
    worker.enqueue_task(spec(path="y"))
    assert sent(worker) == 2


def test_a_role_without_the_grant_sends_unchecked(
    worker: HorsiesHook, make_hook: MakeHook, caplog: pytest.LogCaptureFixture
) -> None:
    role, database = "no_catalog", worker.settings.database.connect_args["dbname"]
    sql(worker, f"DROP ROLE IF EXISTS {role}")
    sql(worker, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        for grant in (
            "ALL ON ALL TABLES IN SCHEMA public",
            "USAGE ON SCHEMA airflow_horsies",
            "ALL ON ALL TABLES IN SCHEMA airflow_horsies",
        ):
            sql(worker, f"GRANT {grant} TO {role}")
        sql(worker, f"REVOKE ALL ON airflow_horsies.catalog, airflow_horsies.catalog_workers FROM {role}, PUBLIC")
        limited = make_hook(database, login=role, password="x")
        with caplog.at_level(logging.WARNING, accepting.__name__):
            assert limited.submit_task(spec("unknown"), INSTANCE, TRIED).outcome is SubmitOutcome.SENT
            limited.enqueue_task(spec("unknown"))
            limited.enqueue_task(spec("unknown"))
        assert sum("Tasks are sent unchecked" in record.getMessage() for record in caplog.records) == 1
        limited.close()
    finally:
        sql(worker, f"DROP OWNED BY {role}")
        sql(worker, f"DROP ROLE {role}")


def test_what_documented_grants_allow_is_enough(worker: HorsiesHook, make_hook: MakeHook) -> None:
    """A role whose grants are older than the catalog reads it: the schema has its own privilege."""
    role, database = "older_grants", worker.settings.database.connect_args["dbname"]
    sql(worker, f"DROP ROLE IF EXISTS {role}")
    sql(worker, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        sql(worker, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        sql(worker, f"GRANT USAGE ON SCHEMA airflow_horsies TO {role}")
        sql(worker, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO {role}")
        sql(worker, f"REVOKE ALL ON airflow_horsies.catalog, airflow_horsies.catalog_workers FROM {role}")
        limited = make_hook(database, login=role, password="x")
        with pytest.raises(TaskRefused):
            limited.submit_task(spec("unknown"), INSTANCE, TRIED)
        assert [item.name for item in limited.read_catalog()] == ["flights.count"]
        limited.close()
    finally:
        sql(worker, f"DROP OWNED BY {role}")
        sql(worker, f"DROP ROLE {role}")


def test_older_tables_hold_no_catalog(hook: HorsiesHook) -> None:
    assert speak(hook, 1, entry("a")) is None
    assert hook.read_catalog() == []
    hook.enqueue_task(spec("anything"))


def test_entries_are_recorded_once_and_again_if_they_are_gone(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    known = entry("a"), entry("b", n="integer")
    assert speak(hook, 1, *known) is False
    assert speak(hook, 2, *known) is True
    assert sql(hook, "SELECT count(*) FROM airflow_horsies.catalog") == [(2,)]
    (first, second) = hook.read_catalog()
    assert (first.workers, first.is_live, first.releases, first.hosts) == (2, True, ("9.9",), (HOST,))
    assert (second.name, second.signature, second.served_queues) == ("b", "n: integer", ("default",))
    assert hook.read_catalog(queue="other") == []
    with pytest.raises(InvalidTask, match="kind: must be 'task' or 'workflow'"):
        hook.read_catalog(kind="tasks")


def test_the_catalog_is_pruned(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    speak(hook, 1, entry("old"))
    speak(hook, 2, entry("new"))
    sql(hook, "UPDATE airflow_horsies.catalog_workers SET seen_at = now() - interval '8 days' WHERE pid = 1")
    prune_ledger(hook.client)
    prune_ledger(hook.client)
    assert [item.name for item in hook.read_catalog()] == ["new"]
    assert sql(hook, "SELECT name FROM airflow_horsies.catalog") == [("new",)]


def test_a_batch_is_checked_within_a_bound(worker: HorsiesHook) -> None:
    items = [{"path": "x"}] * 20_000 + [{"path": 7}]
    began = time.monotonic()
    worker.client.enqueue_items(BatchSpec(task=spec(), items=items, chunk_size=10_000))
    assert time.monotonic() - began < 10
    with pytest.raises(TaskRefused, match="item 3: path must be a text"):
        worker.enqueue_items(spec(), [{"path": "x"}] * 3 + [{"path": 7}], chunk_size=100)
