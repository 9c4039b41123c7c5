"""An upgraded Airflow meets the tables of an older release, while others use them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import psycopg
import pytest

from airflow_horsies.client import pages, pool
from airflow_horsies.client.ledger import read_ledger_version
from airflow_horsies.client.pages import PageClient
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import SchemaUnsupported
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import schema
from airflow_horsies.models import AirflowTry, CancelOutcome, TaskInstanceKey, TaskSpec
from tests.integration.asynchronous import ask
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
SPEC = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2})
OLD_VERSION = 3
STATEMENT_SECONDS = 0.5
MIGRATION_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _old_ledger(hook: HorsiesHook) -> None:
    def make() -> Script[None]:
        for migration in schema.migrations()[:OLD_VERSION]:
            yield Statement(migration.sql)
            params = {"version": migration.version, "name": migration.name}
            yield Statement(sql_text(schema.PACKAGE, "record_migration"), params)

    hook.client.run(make)


@pytest.fixture
def _slow_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large table, on whatever limits there are; in life both take longer."""
    *earlier, last = schema.migrations()
    slowed = (*earlier, replace(last, sql=f"{last.sql};\nSELECT pg_sleep({MIGRATION_SECONDS});"))
    monkeypatch.setattr(schema, "migrations", lambda: slowed)
    limits = Limits(lock_seconds=STATEMENT_SECONDS, statement_seconds=STATEMENT_SECONDS)
    monkeypatch.setattr(pages, "LIMITS", limits)
    monkeypatch.setattr(pool.Pool, "__init__", _with_limits(pool.Pool.__init__, limits))


def test_others_go_on_while_a_migration_waits_for_a_dump(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, database: str
) -> None:
    task_id = hook.enqueue_task(SPEC)
    upgraded, other = make_hook(database), make_hook(database)
    submitting = threading.Thread(target=lambda: upgraded.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1)))
    outcomes: list[CancelOutcome] = []
    cancelling = threading.Thread(target=lambda: outcomes.append(other.cancel_task(task_id)))
    with psycopg.connect(**postgres.conninfo(database)) as dump:
        dump.execute("LOCK TABLE airflow_horsies.migrations, airflow_horsies.submissions IN ACCESS SHARE MODE")
        submitting.start()
        _wait_for_waiting(postgres, database)
        cancelling.start()
        cancelling.join(15)
        assert outcomes == [CancelOutcome.CANCELLED]
        assert submitting.is_alive()
    submitting.join(30)
    assert not submitting.is_alive()
    assert hook.client.run(schema.read_version) == schema.latest_version()


@pytest.mark.usefixtures("_slow_migration")
def test_a_page_migrates_for_longer_than_it_may_read(hook: HorsiesHook) -> None:
    with PageClient(hook.settings) as page:
        assert page.read_latest(INSTANCE) == []
    assert hook.client.run(schema.read_version) == schema.latest_version()


@pytest.mark.usefixtures("_slow_migration")
def test_a_trigger_migrates_for_longer_than_it_may_read(hook: HorsiesHook) -> None:
    assert asyncio.run(ask(hook, "read_submissions", INSTANCE)) == []
    assert hook.client.run(schema.read_version) == schema.latest_version()


def test_what_an_older_release_submitted_is_found_by_a_hook(hook: HorsiesHook) -> None:
    assert hook.read_submissions(INSTANCE) == []
    assert hook.client.run(schema.read_version) == schema.latest_version()


def _wait_for_waiting(postgres: EmbeddedPostgres, database: str) -> None:
    query = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        for _ in range(200):
            if connection.execute(query).rowcount:
                return
            connection.execute("SELECT pg_sleep(0.05)")
    raise AssertionError("nobody waits")


def _with_limits(init: object, limits: Limits) -> object:
    def make(self: pool.Pool, database: object) -> None:
        init(self, database, limits=limits)  # type: ignore[operator]

    return make


@pytest.mark.parametrize("on_event_loop", [False, True], ids=["a worker", "the triggerer"])
@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_what_waits_finds_its_tasks_where_horsies_is_newer_than_tested(
    make_hook: MakeHook, database: str, on_event_loop: bool
) -> None:
    """Its tables are read and not written; ours are migrated, because only the newest can be read."""
    hook = make_hook(database)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("INSERT INTO horsies_schema_version (version, applied_at) VALUES (999, now())")
    assert read_ledger_version(hook.client) == OLD_VERSION
    if on_event_loop:
        assert asyncio.run(ask(hook, "read_submissions", INSTANCE)) == []
    else:
        assert hook.read_submissions(INSTANCE) == []
    assert read_ledger_version(hook.client) > OLD_VERSION
    with pytest.raises(SchemaUnsupported):
        hook.submit_task(SPEC, INSTANCE, AirflowTry(try_number=1))
