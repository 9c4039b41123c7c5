"""What an item costs Postgres and the worker, what is kept of it, and who has how many connections open.

.venv/bin/python -m benchmarks.sizing [--tasks 2000] [--items 20000] [--commit-seconds 10] [--out FILE]

Each way has a database and a worker of its own, with our defaults, and all of an item counts: sending, running, waiting
and reading its value. `make bench ARGS=sizing` also writes the pages that show the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.client.pool import MAX_CONNECTIONS
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.ui.threads import THREADS
from benchmarks.capacity import measure_commits
from benchmarks.connections import AIRFLOW, WORKER, of_triggerer, sampled
from benchmarks.counting import Meter, log_statements, per_task
from benchmarks.databases import durable_postgres, open_hook
from benchmarks.end_to_end import CHUNK, batch_seconds
from benchmarks.figures import quiet
from benchmarks.worker_cost import OURS, PLAIN, PROJECT, SAME, SETTLE_SECONDS, WAIT_SECONDS, served

TRIGGERS = 300
TABLES = """
    SELECT n.nspname, coalesce(root.relname, c.relname), sum(pg_total_relation_size(c.oid))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_class root ON root.oid = pg_partition_root(c.oid)
    WHERE c.relkind = 'r' AND n.nspname IN ('public', 'airflow_horsies')
    GROUP BY 1, 2
"""
# Each is the time of a transaction that changed the state of tasks, and therefore notified.
NOTIFYING = """
    SELECT count(DISTINCT created_at) + count(DISTINCT claimed_at) + count(DISTINCT started_at)
         + count(DISTINCT terminal_at)
    FROM horsies_task_history
"""

Tables = dict[str, tuple[int, int]]
Run = Callable[[HorsiesHook, int], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows and bytes of one table per item, indexes included."""

    rows: float
    bytes: float


class Way:
    """One way to send items, on a database of its own with a worker."""

    def __init__(
        self, hook: HorsiesHook, own: psycopg.Connection[Any], run: Callable[[HorsiesHook, int], None]
    ) -> None:
        self._hook = hook
        self._own = own
        self._run = run

    def run(self, count: int) -> float:
        begun = time.monotonic()
        self._run(self._hook, count)
        return time.monotonic() - begun

    def tables(self) -> Tables:
        """Rows and bytes of each table; a partitioned one counts as one."""
        self._own.execute("VACUUM")
        found = {}
        for schema, table, size in self._own.execute(TABLES).fetchall():
            (rows,) = self._own.execute(
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema, table))
            ).fetchone() or (0,)
            found[table if schema == "public" else f"{schema}.{table}"] = (rows, int(size))
        return found

    def notifying(self) -> int:
        (found,) = self._own.execute(NOTIFYING).fetchone() or (0,)
        return int(found)


def kept(before: Tables, after: Tables, items: int) -> dict[str, Kept]:
    """What grew with the items; a live table that was emptied again keeps nothing."""
    found = {}
    for name, (rows, size) in after.items():
        rows_before, size_before = before.get(name, (0, 0))
        # Not what the worker writes from time to time.
        if (rows - rows_before) * 1_000 > items:
            found[name] = Kept((rows - rows_before) / items, max(size - size_before, 0) / items)
    return found


def send_tasks(hook: HorsiesHook, count: int) -> None:
    """Each as a HorsiesOperator does, in a transaction of its own."""
    ids = []
    for number in range(count):
        instance = TaskInstanceKey(dag_id="bench", run_id=f"run {time.monotonic_ns()}", task_id="add")
        tried = AirflowTry(try_number=1, run_started_at=datetime.now(UTC))
        ids.append(
            hook.submit_task(TaskSpec(task_name="bench.add", kwargs={"a": number, "b": 1}), instance, tried).task_id
        )
    tasks = hook.wait(ids, timeout_seconds=WAIT_SECONDS)
    assert all(task.state is TaskState.COMPLETED for task in tasks)


def ways() -> dict[str, Run]:
    numbers = itertools.count()
    return {
        "task": send_tasks,
        "batch": lambda hook, count: _discard(batch_seconds(hook, next(numbers), count)),
        "chunked": lambda hook, count: _discard(batch_seconds(hook, next(numbers), count, chunk_size=CHUNK)),
    }


def _discard(_: float) -> None:
    return None


@contextlib.contextmanager
def working(
    postgres: EmbeddedPostgres, name: str, run: Any, processes: int | None = None
) -> Iterator[tuple[Way, Meter]]:
    postgres.create_database(name)
    info = postgres.conninfo(name)
    command, app = OURS
    with (
        tempfile.TemporaryDirectory() as folder,
        HorsiesWorker(
            app, conninfo=info, log=Path(folder) / "worker.log", folder=PROJECT, command=command,
            environ={"PYTHONPATH": str(PROJECT)}, processes=processes,
        ) as worker,
        open_hook(info) as hook,
        psycopg.connect(**info, autocommit=True, application_name="airflow-horsies") as own,
        contextlib.closing(Meter(postgres, name, worker.process.pid)) as meter,
    ):  # fmt: skip
        migrate_ledger(hook.client)
        yield Way(hook, own, run), meter


def measure_way(postgres: EmbeddedPostgres, name: str, run: Run, items: int) -> dict[str, Any]:
    """What one item costs, without what the worker costs while it waits."""
    with working(postgres, name, run) as (way, meter):
        way.run(items // 2)
        tables, notified = way.tables(), way.notifying()
        time.sleep(SETTLE_SECONDS)
        first = meter.count()
        time.sleep(SETTLE_SECONDS)
        second = meter.count()
        begun = time.monotonic()
        seconds = way.run(items)
        time.sleep(SETTLE_SECONDS)
        idle = (second - first) / SETTLE_SECONDS
        cost = per_task(second, meter.count(), idle, seconds=time.monotonic() - begun, tasks=items)
        found = {
            **{key: value for key, value in asdict(cost).items() if key != "statements"},
            "notifying_commits": (way.notifying() - notified) / items,
            "items_per_second": items / seconds,
            "kept": {table: asdict(each) for table, each in kept(tables, way.tables(), items).items()},
            "idle_transactions_per_second": idle.transactions,
        }
        # Logging each statement has a cost of its own.
        log_statements(postgres, "all")
        counted, few = meter.kinds(), max(items // 4, 1)
        way.run(few)
        time.sleep(1)
        log_statements(postgres, "none")
        statements = meter.kinds() - counted
    return found | {"statements": {kind: count / few for kind, count in sorted(statements.items())}}


def measure_upstream(postgres: EmbeddedPostgres, tasks: int) -> dict[str, Any]:
    """A plain worker of horsies; nobody waits for its tasks."""
    with served(postgres, "upstream", PLAIN, SAME, tasks) as side:
        cost = asdict(side.measure())
        log_statements(postgres, "all")
        statements = side.statements()
        log_statements(postgres, "none")
    del cost["statements"]
    return cost | {"statements": dict(sorted(statements.items()))}


def measure_connections(postgres: EmbeddedPostgres) -> dict[str, int]:
    most = {}
    for processes in (1, 3):
        name = f"connections_{processes}"
        with working(postgres, name, send_tasks, processes) as (way, _), sampled(postgres, name) as open_at_once:
            way.run(100)
            most[processes] = open_at_once[WORKER]
            if processes == 1:
                # One is that of this program.
                waiting = open_at_once[AIRFLOW] - 1
    info = postgres.conninfo("connections_1")
    with open_hook(info) as hook:
        triggerer = of_triggerer(postgres, info, hook, TRIGGERS)
    per_process = (most[3] - most[1]) // 2
    return {
        "worker": most[1] - per_process,
        "worker_process": per_process,
        "triggerer": triggerer,
        "triggerer_reads": MAX_CONNECTIONS,
        "waiting_task": waiting,
        "api_server_process": THREADS,
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        durable_postgres(Path(folder) / "bench") as postgres,
    ):
        print("  commits", flush=True)
        found: dict[str, Any] = {"commits_per_second": measure_commits(postgres, given.commit_seconds), "ways": {}}
        for name, run in ways().items():
            print(f"  {name}", flush=True)
            items = given.items if name == "chunked" else given.tasks
            found["ways"][name] = measure_way(postgres, name, run, items)
        print("  upstream", flush=True)
        found["upstream"] = measure_upstream(postgres, given.tasks)
        print("  connections", flush=True)
        found["connections"] = measure_connections(postgres)
        return found


def rounded(value: Any) -> Any:
    """Four digits that matter."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=2_000)
    options.add_argument("--items", type=int, default=20_000, help="in chunks")
    options.add_argument("--commit-seconds", type=int, default=10)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    quiet()
    found = rounded(measure(given))
    found["_meta"] = {
        "chunk_size": CHUNK,
        "tasks": given.tasks,
        "items": given.items,
        "load": round(os.getloadavg()[2] / len(os.sched_getaffinity(0)), 1),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if given.out:
        given.out.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
