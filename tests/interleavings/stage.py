"""The database two writers meet on: its start state, set back before each order, and what it holds afterwards."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
from airflow.sdk import Connection
from psycopg import sql

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.db import session
from airflow_horsies.db.connection import Database
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import migrations
from airflow_horsies.models import TaskSpec, TaskState
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.schema import Schema
from airflow_horsies.wire.statements import Wire
from tests.integration.conftest import make_worker
from tests.integration.releases import keeps_history
from tests.interleavings.engine import Gate, SteppedConnection
from tests.interleavings.upstream import Upstream
from tests.unit.driving import sql_files

NAMES = ("a", "b")
ADDRESS = "http://airflow.test:8080"
TABLES = """
SELECT n.nspname, c.relname
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE
    NOT c.relispartition AND c.relkind IN ('r', 'p')
    AND (
        n.nspname = 'airflow_horsies' AND c.relname <> 'migrations'
        OR n.nspname = 'public' AND c.relname IN (
            'horsies_tasks', 'horsies_task_history', 'horsies_task_attempts', 'horsies_key_reservations'
        )
    )
ORDER BY n.nspname, c.relname
"""
TASKS_MOVED = """
SELECT id::text, status, command_fingerprint FROM horsies_tasks
UNION ALL
SELECT task_id::text, status, command_fingerprint FROM horsies_task_history
"""
TASKS_IN_PLACE = "SELECT id, status, kwargs FROM horsies_tasks"
SUBMISSIONS = """
SELECT
    to_jsonb(sent) - 'submitted_at' - 'released_at'
    || jsonb_build_object('is_released', released_at IS NOT NULL) AS row
FROM airflow_horsies.submissions AS sent
ORDER BY dag_id, run_id, task_id, map_index, life, round, position
"""
CHUNKS = "SELECT horsies_task_id::text, works, places, dropped FROM airflow_horsies.chunks ORDER BY 1"
ITEMS = "SELECT horsies_task_id::text, number, outcome, value FROM airflow_horsies.items ORDER BY 1, 2"
REPAIRS = """
SELECT to_jsonb(asked) - 'id' - 'requested_at' - 'taken_at' || jsonb_build_object('is_open', taken_at IS NULL) AS row
FROM airflow_horsies.repairs AS asked
ORDER BY requested_by, life
"""
SIGNALS = "SELECT horsies_task_id::text, signal FROM airflow_horsies.signals ORDER BY id"
MIGRATIONS = "SELECT version FROM airflow_horsies.migrations ORDER BY version"
RESET = sql.SQL("SELECT kept.reset()")
WORK_BYTES = 32
LOCKS = "SELECT locktype, mode FROM pg_locks WHERE pid = ANY(%s) AND locktype <> 'virtualxid'"


class SteppedDatabase(Database):
    """Its connections stop before each step."""

    gate: Gate

    def connect(self, args: Mapping[str, Any] | None = None) -> Any:
        return self.gate.connect(**(self.connect_args if args is None else args))


class Actor:
    """One of the two writers: a hook, or a worker of horsies, whose connection stops before each step."""

    def __init__(self, name: str, hook: HorsiesHook, release: str, schema: Schema) -> None:
        self.gate = Gate(name, label_of)
        self.schema = schema
        self.hook = hook
        self._release = release
        self._worker: SteppedConnection | None = None
        self._child: WorkerClient | None = None
        stepped = SteppedDatabase(
            connect_args=hook.settings.database.connect_args, listen_args=hook.settings.database.connect_args
        )
        object.__setattr__(stepped, "gate", self.gate)
        hook.__dict__["settings"] = replace(hook.settings, database=stepped)

    def begin(self, *, knows_ledger: bool, joined: frozenset[str]) -> None:
        """As a process that has just begun, or one that has looked at the ledger before."""
        self.gate.joined = joined
        client = self.hook.client
        client._known._schema, client._known._found_at = self.schema, math.inf
        client.scope.ledger_is_current = knows_ledger
        self.place(ADDRESS)

    def place(self, address: str) -> None:
        """The hook is one of the deployment at that address."""
        scope = self.hook.client.scope
        scope.settings = replace(scope.settings, base_url=address)

    def upstream(self) -> Upstream:
        """The worker."""
        if self._worker is None:
            self._worker = self.gate.connect(**self.hook.settings.database.connect_args)
        return Upstream(self._worker, self._release)

    def child(self) -> WorkerClient:
        """The child of a worker, which reports what became of items."""
        if self._child is None:
            self._child = child_client(self.hook.settings.database, self.schema)
        return self._child

    def close(self) -> None:
        self.hook.close()
        if self._worker is not None:
            self._worker.close()
        if self._child is not None:
            self._child.close()
        self.gate.close()


@dataclass(frozen=True)
class Task:
    state: TaskState
    work: str

    @property
    def is_live(self) -> bool:
        return not self.state.is_terminal


@dataclass(frozen=True)
class Chunk:
    """The items of a chunk, by number: what each does and where it stands; and which must not be started."""

    works: tuple[str, ...]
    places: tuple[int, ...]
    dropped: frozenset[int]


@dataclass(frozen=True)
class Found:
    """What the database holds after an order."""

    tasks: Mapping[str, Task]
    doubled: tuple[str, ...]
    submissions: tuple[Mapping[str, Any], ...]
    chunks: Mapping[str, Chunk]
    # The outcome of an item and its value, by chunk and number.
    items: Mapping[tuple[str, int], tuple[str, str | None]]
    repairs: tuple[Mapping[str, Any], ...]
    signals: tuple[tuple[str, str], ...]
    versions: tuple[int, ...]
    locks: tuple[tuple[str, str], ...]

    @property
    def live(self) -> dict[str, Task]:
        return {task_id: task for task_id, task in self.tasks.items() if task.is_live}

    def open_works(self, task_id: str) -> list[str]:
        """What a task may still do: its work, or that of each item without an outcome."""
        if task_id not in self.live:
            return []
        chunk = self.chunks.get(task_id)
        if chunk is None:
            return [self.tasks[task_id].work]
        ended = chunk.dropped | {number for number in range(len(chunk.works)) if (task_id, number) in self.items}
        return [work for number, work in enumerate(chunk.works) if number not in ended]

    def in_state(self, state: TaskState) -> set[str]:
        return {task_id for task_id, task in self.tasks.items() if task.state is state}


@dataclass
class Stage:
    """One database of a release."""

    postgres: EmbeddedPostgres
    name: str
    release: str
    works: dict[object, str] = field(default_factory=dict)
    _specs: dict[tuple[Any, ...], TaskSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watcher = psycopg.connect(**self.postgres.conninfo(self.name), autocommit=True)
        self.watcher.execute("SET session_replication_role = replica")
        self.watcher.execute("CREATE SCHEMA IF NOT EXISTS kept")
        self.plain = self._make_hook()
        schema = self.plain.client.schema
        self.actors = {name: Actor(name, self._make_hook(), self.release, schema) for name in NAMES}
        self._reset: sql.Composable = RESET

    def spec(self, work: str, **fields: Any) -> TaskSpec:
        """A task that does this work; what it is known by in the tables is remembered."""
        wanted = (work, *sorted(fields.items()))
        if wanted in self._specs:
            return self._specs[wanted]
        self._specs[wanted] = spec = TaskSpec(task_name="add", kwargs={"work": work}, **fields)
        encoded = encode_task(spec)
        self.works[encoded.command_fingerprint] = self.works[encoded.kwargs] = self.works[encoded.work] = work
        return spec

    def item(self, work: str) -> Mapping[str, Any]:
        """The arguments of an item that does this work."""
        return self.spec(work).kwargs

    def child(self) -> WorkerClient:
        """One that takes no part in the order."""
        return child_client(self.plain.settings.database, self.plain.client.schema)

    def begin(self, given: Callable[[Stage], Any]) -> Any:
        """Make the start state and keep a copy of it."""
        self._forget_all()
        self.plain.client.scope.ledger_is_current = False
        migrate_ledger(self.plain.client)
        handed = given(self)
        self.plain.close()
        self._keep()
        return handed

    def begin_with_ledger(self, version: int, given: Callable[[Stage], Any]) -> Any:
        """An earlier version of the ledger, empty, is what each order begins with; only tasks are given."""
        self._forget_all()
        migrate_ledger(self.plain.client)
        handed = given(self)
        self.plain.close()
        self._keep()
        parts = [
            "DROP SCHEMA IF EXISTS airflow_horsies CASCADE",
            "DELETE FROM horsies_tasks",
            "INSERT INTO horsies_tasks OVERRIDING SYSTEM VALUE TABLE kept.horsies_tasks",
        ]
        for migration in migrations()[:version]:
            number, name = migration.version, migration.name
            parts += [
                migration.sql,
                f"INSERT INTO airflow_horsies.migrations (version, name) VALUES ({number}, '{name}')",
            ]
        self._reset = sql.SQL(";\n".join(parts))  # type: ignore[arg-type]
        return handed

    def reset(self) -> None:
        self.watcher.execute(self._reset)

    def worker(self) -> Upstream:
        """A worker that takes no part in the order: it makes the start state."""
        connection = psycopg.connect(**self.postgres.conninfo(self.name))
        return Upstream(connection, self.release)

    def read(self) -> Found:
        rows = self._fetch(TASKS_MOVED if keeps_history(self.release) else TASKS_IN_PLACE)
        ids = [row[0] for row in rows]
        return Found(
            tasks={task_id: Task(TaskState(state), self._work(mark)) for task_id, state, mark in rows},
            doubled=tuple(sorted({task_id for task_id in ids if ids.count(task_id) > 1})),
            submissions=tuple(row for (row,) in self._fetch(SUBMISSIONS)),
            chunks={task_id: self._chunk(*columns) for task_id, *columns in self._fetch(CHUNKS)},
            items={(task_id, number): (outcome, value) for task_id, number, outcome, value in self._fetch(ITEMS)},
            repairs=tuple(row for (row,) in self._fetch(REPAIRS)),
            signals=tuple(self._fetch(SIGNALS)),
            versions=tuple(version for (version,) in self._fetch(MIGRATIONS)),
            locks=tuple(self._fetch(LOCKS, [actor.gate.pid for actor in self.actors.values()])),
        )

    def _fetch(self, query: str, *params: Any) -> list[Any]:
        return self.watcher.execute(query.encode(), params or None, prepare=True).fetchall()

    def close(self) -> None:
        for actor in self.actors.values():
            actor.close()
        self.plain.close()
        self.watcher.close()

    def _work(self, mark: object) -> str:
        return self.works.get(bytes(mark) if isinstance(mark, memoryview) else mark, "unknown")

    def _chunk(self, works: bytes, places: list[int], dropped: list[int]) -> Chunk:
        digests = [works[start : start + WORK_BYTES] for start in range(0, len(works), WORK_BYTES)]
        return Chunk(tuple(map(self._work, digests)), tuple(places), frozenset(dropped))

    def _make_hook(self) -> HorsiesHook:
        info = self.postgres.conninfo(self.name)
        connection = Connection(
            conn_id="horsies_orders",
            conn_type="horsies",
            host=info["host"],
            port=info["port"],
            login=info["user"],
            password=info["password"],
            schema=info["dbname"],
        )
        hook = HorsiesHook("horsies_orders", connection=connection)
        hook.__dict__["settings"] = replace(hook.settings, base_url=ADDRESS)
        return hook

    def _tables(self) -> list[tuple[str, str]]:
        return self.watcher.execute(TABLES).fetchall()

    def _forget_all(self) -> None:
        for schema, table in self._tables():
            self.watcher.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table)))

    def _keep(self) -> None:
        parts: list[sql.Composable] = []
        for schema, table in self._tables():
            place, copy = sql.Identifier(schema, table), sql.Identifier("kept", table)
            self.watcher.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(copy))
            made = self.watcher.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(copy, place))
            parts.append(sql.SQL("DELETE FROM {}").format(place))
            if made.rowcount:
                parts.append(sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE TABLE {}").format(place, copy))
        # A function keeps the plans of its statements.
        body = sql.SQL("").join([sql.SQL("BEGIN "), *(sql.SQL("{}; ").format(part) for part in parts), sql.SQL("END")])
        self.watcher.execute(
            sql.SQL("CREATE OR REPLACE FUNCTION kept.reset() RETURNS void LANGUAGE plpgsql AS {}").format(
                sql.Literal(body.as_string(self.watcher))
            )
        )
        self._reset = RESET


@contextmanager
def staged(postgres: EmbeddedPostgres, release: str, folder: Path) -> Iterator[Stage]:
    """A database whose tables were made by a worker of the release."""
    name = f"orders_{release}"
    postgres.create_database(name)
    with make_worker(postgres, name, release, folder):
        pass
    stage = Stage(postgres, name, release)
    # It would count as one that runs no chunks.
    stage.watcher.execute("DELETE FROM horsies_worker_states")
    try:
        yield stage
    finally:
        stage.close()
        postgres.drop_database(name)


def child_client(database: Database, schema: Schema) -> WorkerClient:
    """As a child that has reported before."""
    client = WorkerClient(database, is_limited=False)
    client._wire, client._supports_chunks = Wire(schema), True
    return client


@contextmanager
def without_pauses() -> Iterator[None]:
    """What is run again is run again at once."""
    with patch.object(session, "RERUN_PAUSES_SECONDS", (0.0,) * len(session.RERUN_PAUSES_SECONDS)):
        yield


def label_of(query: Any) -> str:
    """The name of a statement's file, or how it begins."""
    text = query.decode() if isinstance(query, bytes) else str(query)
    if text in sql_files():
        return sql_files()[text]
    words = re.sub(r"\s+", " ", text).strip()
    called = re.search(r"FROM (horsies_\w+)\(", words)
    return called[1] if called else words[:40]
