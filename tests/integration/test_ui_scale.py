"""The pages of the UI ask for as much in a large database as in a small one, and by an index.

The routes themselves are called, so that a query they come to make is measured too; only what they ask of Airflow's
own database is left out.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Rows, Script, Statement
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from tests.integration.many_tasks import BATCH, END_OF_BATCH, TASKS_OF_RUN, fill, instance_of_many_rounds, run_ids
from tests.integration.releases import IN_PLACE, MOVED, keeps_history

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.client.pages import PageClient
    from airflow_horsies.ui.routes import instance as instance_routes
    from airflow_horsies.ui.routes import overview as overview_routes
    from airflow_horsies.ui.routes import run as run_routes
    from airflow_horsies.ui.routes.instance import Sort

T = TypeVar("T")

FEW_TASKS = 10_000
MOST_GROWTH = 3.0
LARGE_TABLE = 20_000
RIGHTS: Any = SimpleNamespace(
    may_read=lambda dag_id: True,
    may_read_log=lambda dag_id: True,
    may_read_values=lambda dag_id: True,
    may_act=lambda dag_id: True,
)
NO_SESSION: Any = None


@dataclass(frozen=True)
class Scale:
    """How much a release's large database holds; the small one has as many days."""

    release: str
    tasks: int
    days: int
    rounds: int


# Each day's leaf of the history must itself be large.
QUICK = Scale(MOVED, 60_000, days=1, rounds=3)
MILLION = [Scale(release, 1_000_000, days=14, rounds=7) for release in (MOVED, IN_PLACE)]
SCALES = [
    pytest.param(scale.release, scale, id=f"{scale.release}-{scale.tasks}", marks=marks)
    for scale, marks in [(QUICK, ()), *((scale, (pytest.mark.slow, pytest.mark.timeout(1_800))) for scale in MILLION)]
]
pytestmark = pytest.mark.parametrize(("release", "measured"), SCALES, indirect=True)


@dataclass
class Recorder:
    """What a client's sessions ran, and how long each statement took with the fetching of its rows."""

    ran: list[tuple[Statement, float]] = field(default_factory=list)

    def record(self, script: Script[T]) -> Script[T]:
        try:
            statement = next(script)
            while True:
                began = time.perf_counter()
                rows: Rows = yield statement
                self.ran.append((statement, time.perf_counter() - began))
                statement = script.send(rows)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def drain(self) -> list[tuple[Statement, float]]:
        ran, self.ran = self.ran, []
        return ran


class RecordedSession(Session):
    def __init__(self, database: Any, recorder: Recorder) -> None:
        super().__init__(database)
        self._recorder = recorder

    def run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = False) -> T:
        # One after another in any case: each is timed.
        return super().run(lambda: self._recorder.record(make_script()))


@dataclass
class Site:
    """The pages on one database; each call connects anew, as each request does."""

    database: str
    tasks: int
    scale: Scale
    conninfo: Mapping[str, Any]
    recorder: Recorder = field(default_factory=Recorder)

    def client(self, *, seconds: float = 0) -> PageClient:
        info = self.conninfo
        connection = Connection(
            conn_id="horsies_test",
            conn_type="horsies",
            host=info["host"],
            port=info["port"],
            login=info["user"],
            password=info["password"],
            schema=info["dbname"],
        )
        client = PageClient(HorsiesHook("horsies_test", connection=connection).settings)
        client.session = RecordedSession(client.settings.database, self.recorder)
        return client

    def run_of(self, turn: int) -> int:
        """Another DAG run in each turn, from all over the past."""
        return int(END_OF_BATCH + (self.tasks - END_OF_BATCH) * (turn + 0.5) / self.scale.rounds) // TASKS_OF_RUN

    def past_of(self, turn: int) -> datetime:
        """A time before which also the small database has nearly a whole window of tasks to look through."""
        return datetime.now(UTC) - timedelta(days=0.1 * self.scale.days * (turn + 0.5) / self.scale.rounds)


def show_instance(site: Site, turn: int) -> None:
    key = instance_of_many_rounds(site.run_of(turn))
    shown = answer(instance_routes.read_instance(key, NO_SESSION, RIGHTS))
    assert len(shown["submissions"]) == 3 and all(each["task"]["state"] for each in shown["submissions"])
    assert shown["log"]["lines"]
    assert answer(instance_routes.read_values(key, NO_SESSION))["result"]
    with site.client() as client:
        (newest,) = client.read_rounds(key, 0)
    assert b"".join(instance_routes._written_lines(newest, None))


def show_batch(site: Site, turn: int) -> None:
    shown = answer(instance_routes.read_instance(BATCH, NO_SESSION, RIGHTS, position=100 * turn))
    assert shown["positions"] == sum(shown["counts"].values()) == 1_000
    assert answer(instance_routes.read_items(BATCH, Sort.DURATION))["total"] == 1_000


def show_run(site: Site, turn: int) -> None:
    shown = answer(run_routes.read_run(*run_ids(site.run_of(turn))))
    assert shown["total"] == 18 and all(row["state"] for row in shown["rows"])


def show_batch_run(site: Site, turn: int) -> None:
    shown = answer(run_routes.read_run(BATCH.dag_id, BATCH.run_id))
    assert [row["items"] for row in shown["rows"]] == [1_000]


def show_overview(site: Site, turn: int) -> None:
    overview_routes.cluster = overview_routes.Shared(overview_routes._read_cluster)
    shown = answer(overview_routes.read_overview(RIGHTS, NO_SESSION))
    assert (len(shown["queues"]), len(shown["workers"]), shown["recent_tasks"]) == (4, 20, 2_000)
    assert shown["activity"][0]["instance"]
    assert answer(overview_routes.read_failures(NO_SESSION, RIGHTS))["failures"]


def show_older_failures(site: Site, turn: int) -> None:
    before_id = str(uuid.UUID(int=0))
    shown = answer(overview_routes.read_failures(NO_SESSION, RIGHTS, site.past_of(turn), before_id))
    assert shown["failures"]


PAGES: tuple[Callable[[Site, int], None], ...] = (
    show_instance,
    show_batch,
    show_run,
    show_batch_run,
    show_overview,
    show_older_failures,
)


def answer(response: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(response.body)
    return read


@dataclass
class Measured:
    """The seconds of each page in both databases, and what the pages ran on the large one."""

    seconds: dict[str, tuple[float, float]]
    ran: dict[str, list[Statement]]
    large: Site

    def describe(self) -> str:
        return "\n".join(
            f"{page:<20} {few * 1_000:8.1f} ms {many * 1_000:8.1f} ms  x{many / few:.2f}"
            for page, (few, many) in self.seconds.items()
        )


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template: str) -> Iterator[Measured]:
    scale: Scale = request.param
    sites = [make_site(postgres, template, scale, tasks) for tasks in (FEW_TASKS, scale.tasks)]
    try:
        with pytest.MonkeyPatch.context() as patch:
            yield measure(sites, patch)
    finally:
        for site in sites:
            postgres.drop_database(site.database)


def make_site(postgres: EmbeddedPostgres, template: str, scale: Scale, tasks: int) -> Site:
    name = f"scale_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name, template=template)
    site = Site(name, tasks, scale, postgres.conninfo(name))
    with site.client() as client:
        migrate_ledger(client)
    with psycopg.connect(**site.conninfo) as connection:
        fill(connection, tasks=tasks, days=scale.days, keeps_history=keeps_history(scale.release))
    return site


def measure(sites: list[Site], patch: pytest.MonkeyPatch) -> Measured:
    """In turns, so that whatever else the machine does falls on both alike.

    Each page is shown twice and timed the second time: the small database is in memory as a whole, and the large one
    would else be told by the speed of the disk.
    """
    patch.setattr(instance_routes, "read_tries", lambda *_: [])
    patch.setattr(instance_routes, "read_rendered", lambda *_: {})
    patch.setattr(overview_routes, "read_states", lambda *_: {})
    patch.setattr(overview_routes, "may_read_connection", lambda user: True)
    patch.setattr(overview_routes, "cluster", overview_routes.cluster)
    taken: dict[str, tuple[list[float], list[float]]] = {page.__name__: ([], []) for page in PAGES}
    ran: dict[str, list[Statement]] = {page.__name__: [] for page in PAGES}
    for turn in range(sites[0].scale.rounds):
        for page in PAGES:
            for site, seconds in zip(sites, taken[page.__name__], strict=True):
                for routes in (instance_routes, run_routes, overview_routes):
                    patch.setattr(routes, "page_client", site.client)
                page(site, turn)
                site.recorder.drain()
                page(site, turn)
                recorded = site.recorder.drain()
                seconds.append(sum(each for _, each in recorded))
                if site is sites[-1]:
                    ran[page.__name__] += [statement for statement, _ in recorded]
    medians = {page: (statistics.median(few), statistics.median(many)) for page, (few, many) in taken.items()}
    return Measured(medians, ran, sites[-1])


def test_pages_take_no_longer_with_many_tasks(measured: Measured) -> None:
    print(f"\n{measured.describe()}")
    slower = [page for page, (few, many) in measured.seconds.items() if many > MOST_GROWTH * few]
    assert not slower, f"{', '.join(slower)} grew:\n{measured.describe()}"


def test_no_page_scans_a_large_table(measured: Measured) -> None:
    with psycopg.connect(**measured.large.conninfo) as connection:
        scans = {page: scanned(connection, statements) for page, statements in measured.ran.items()}
    assert not any(scans.values()), scans


@pytest.mark.parametrize(
    ("table", "page"), [("submissions", "show_run"), ("attempts", "show_instance"), ("logs", "show_instance")]
)
def test_missing_key_of_ours_is_found_out(measured: Measured, table: str, page: str) -> None:
    with psycopg.connect(**measured.large.conninfo) as connection:
        connection.execute(f"ALTER TABLE airflow_horsies.{table} DROP CONSTRAINT {table}_pkey".encode())
        assert table in scanned(connection, measured.ran[page])
        connection.rollback()


@pytest.mark.parametrize(("column", "page"), [("task_id", "show_run"), ("enqueued_at", "show_overview")])
def test_missing_index_of_horsies_is_found_out(measured: Measured, column: str, page: str) -> None:
    with psycopg.connect(**measured.large.conninfo) as connection:
        indexes = connection.execute(
            "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid"
            " WHERE relname LIKE 'horsies_task%%' AND reltuples > %s AND pg_get_indexdef(indexrelid, 1, TRUE) = %s",
            [LARGE_TABLE, column],
        ).fetchall()
        assert indexes
        for (name,) in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        assert scanned(connection, measured.ran[page])
        connection.rollback()


def scanned(connection: psycopg.Connection, statements: list[Statement]) -> set[str]:
    """The large tables that the planner would read from end to end."""
    found = {
        name
        for statement in statements
        for (plans,) in connection.execute(
            f"EXPLAIN (FORMAT JSON) {statement.sql}".encode(), statement.params or None
        ).fetchall()
        for name in scans_of(plans[0]["Plan"])
    }
    large = connection.execute(
        "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND reltuples > %s", [list(found), LARGE_TABLE]
    )
    return {name for (name,) in large.fetchall()}


def scans_of(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for child in plan.get("Plans", ()):
        yield from scans_of(child)
