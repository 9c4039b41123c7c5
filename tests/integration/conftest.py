"""Real Postgres, and databases made by real horsies releases: each test gets a clone of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.providers.postgres.hooks import postgres as postgres_module
from airflow.sdk import Connection

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.reports import save_report
from tests.integration.releases import RELEASES, keeps_history, release_python
from tests.integration.ui_site import (
    HIDDEN,
    HIDDEN_MARK,
    OWN,
    OWN_MARK,
    REPORT,
    Planted,
    Site,
    connected,
    fields,
    of_site,
    plant,
    site,
    submitting_as,
)
from tests.integration.worker_rig import make_rig

__all__ = ["connected", "fields", "make_rig", "of_site", "site"]

HERE = Path(__file__).parent

MakeHook = Callable[..., HorsiesHook]

# What differs between releases is the wire: above it, 'make test' tries the newest one only.
ABOVE_THE_WIRE = (
    "test_attempts",
    "test_bad_input",
    "test_changes",
    "test_cli",
    "test_following",
    "test_hub",
    "test_hub_faults",
    "test_items",
    "test_migrating",
    "test_notifications",
    "test_pruning",
    "test_read_only",
    "test_report",
    "test_sensors",
    "test_spark_source",
    "test_state_machine",
    "test_submission_kills",
    "test_submit",
    "test_triggers",
    "test_wait",
    "test_worker_locks",
    "test_workflow_kills",
)


def _is_of_both(item: pytest.Item) -> bool:
    return item.get_closest_marker("both_releases") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        release = getattr(item, "callspec", None) and item.callspec.params.get("release")  # type: ignore[attr-defined]
        if release and not keeps_history(release) and item.path.stem in ABOVE_THE_WIRE and not _is_of_both(item):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False) as server:
        yield server


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A horsies release; what uses it runs once on each."""
    return str(request.param)


@pytest.fixture(scope="session")
def make_template(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Once for each release: pytest may come back to one."""

    @cache
    def make(release: str) -> str:
        name = f"template_{release}"
        postgres.create_database(name)
        with make_worker(postgres, name, release, tmp_path_factory.mktemp(name)):
            pass
        with psycopg.connect(**postgres.conninfo(name)) as connection:
            connection.execute("DELETE FROM horsies_worker_states")
        return name

    return make


@pytest.fixture(scope="session")
def template(release: str, make_template: Callable[[str], str]) -> str:
    """A database whose tables were made, and completed, by a worker of the release."""
    return make_template(release)


@pytest.fixture
def database(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    yield from _cloned(postgres, template)


@pytest.fixture(scope="module")
def served_database(
    postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A database with a live worker of the release, shared by the tests of a module."""
    for name in _cloned(postgres, template):
        with make_worker(postgres, name, release, tmp_path_factory.mktemp(name)):
            yield name


@pytest.fixture(scope="session")
def planted(
    site: Site, postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planted]:
    """Tasks of two DAGs, each with a mark in all that is its own; their worker is gone."""
    for name in _cloned(postgres, template):
        info = postgres.conninfo(name)
        given = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
        connection = Connection(conn_id="horsies_test", conn_type="horsies", schema=name, **given)
        with (
            HorsiesHook("horsies_test", connection=connection) as hook,
            make_worker(postgres, name, release, tmp_path_factory.mktemp(name)),
            submitting_as(site.base_url),
        ):
            hidden_ids, own_ids = plant(hook, HIDDEN, HIDDEN_MARK), plant(hook, OWN, OWN_MARK)
            hook.client.run(lambda: save_report(REPORT, f"<p>{HIDDEN_MARK} and {OWN_MARK}</p>"))
        yield Planted(database=name, hidden_ids=hidden_ids, own_ids=own_ids)


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    yield from _cloned(postgres, "template0")


@pytest.fixture
def make_hook(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[MakeHook]:
    """Hooks for the test's database; they let their connections go at its end."""
    hooks: list[HorsiesHook] = []

    def make(database: str | None = None, *, extra: dict[str, Any] | None = None, **fields: Any) -> HorsiesHook:
        info = postgres.conninfo(database or request.getfixturevalue("database"))
        given = {
            "host": info["host"],
            "port": info["port"],
            "login": info["user"],
            "password": info["password"],
            "schema": info["dbname"],
            **fields,
        }
        connection = Connection(
            conn_id="horsies_test", conn_type="horsies", extra=json.dumps(extra) if extra else None, **given
        )
        hooks.append(HorsiesHook("horsies_test", connection=connection))
        return hooks[-1]

    yield make
    for hook in hooks:
        hook.close()


@pytest.fixture
def hook(make_hook: MakeHook, database: str) -> HorsiesHook:
    return make_hook(database)


@pytest.fixture
def with_psycopg2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Airflow's Postgres provider picks the older driver."""
    monkeypatch.setattr(postgres_module, "USE_PSYCOPG3", False)


def make_worker(postgres: EmbeddedPostgres, database: str, release: str, folder: Path, **options: Any) -> HorsiesWorker:
    """A worker of a release that knows the tasks of contract_tasks.py."""
    return HorsiesWorker(
        "contract_tasks:app",
        conninfo=postgres.conninfo(database),
        log=folder / "worker.log",
        folder=HERE,
        python=release_python(release),
        **options,
    )


def _cloned(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name, template=template)
    try:
        yield name
    finally:
        postgres.drop_database(name)
