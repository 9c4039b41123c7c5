"""What a short task costs Postgres, and how many run in a second: our runtime beside a plain upstream worker.

.venv/bin/python -m benchmarks.worker_cost [--tasks 2000] [--rounds 5]

Each worker has a database of its own on the same server, and they take turns. First both have the same settings: two
processes that are never replaced, and nothing claimed ahead. Then each has its own defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psycopg

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HORSIES_WORKER, SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from benchmarks.databases import open_hook
from benchmarks.figures import Figure, main, ratio, take_turns, told

PROJECT = Path(__file__).parents[1]
OURS, PLAIN = (SPARK_WORKER, "benchmarks.short_tasks:app"), (HORSIES_WORKER, "benchmarks.plain_short_tasks:app")
SAME = ("--processes", "2", "--max-tasks-per-child", "1000000")
NO_PREFETCH = {"BENCH_PREFETCH": "0"}
# A connection reports what it counted when it has been idle for ten seconds.
SETTLE_SECONDS = 12.0
WAIT_SECONDS = 600
POLL_SECONDS = 2.0
LOGGED = re.compile(r"(statement|execute [^:]*): ")


@dataclass(frozen=True, slots=True)
class Cost:
    """Counted by the server for one database; the log of changes is that of the whole server."""

    transactions: float
    statements: float
    wal_bytes: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))

    def __truediv__(self, by: float) -> Cost:
        return Cost(*(getattr(self, each.name) / by for each in fields(self)))

    def __mul__(self, by: float) -> Cost:
        return self / (1 / by)


def per_task(before: Cost, after: Cost, idle: Cost, *, seconds: float, tasks: int) -> Cost:
    """:param idle: what a worker without tasks costs in a second."""
    return (after - before - idle * seconds) / tasks


class Side:
    """A worker with a database of its own."""

    def __init__(
        self, hook: HorsiesHook, watcher: psycopg.Connection[Any], log: Path, database: str, tasks: int
    ) -> None:
        self._hook = hook
        self._watcher = watcher
        self._log = log
        self._database = database
        self._tasks = tasks

    def run(self) -> float:
        """Seconds from the first commit to the last result."""
        begun = time.perf_counter()
        tasks = self._hook.wait(self._send(), timeout_seconds=WAIT_SECONDS)
        seconds = time.perf_counter() - begun
        assert all(task.state is TaskState.COMPLETED for task in tasks)
        return seconds

    def _send(self) -> list[str]:
        specs = [TaskSpec(task_name="bench.add", kwargs={"a": number, "b": 1}) for number in range(self._tasks)]
        return self._hook.enqueue_tasks(specs)

    def _run_unwatched(self) -> None:
        """As run, with a question every few seconds: whoever waits for the end of each task has a cost of its own."""
        ids = self._send()
        while {*self._hook.read_states(ids).values()} != {TaskState.COMPLETED}:
            time.sleep(POLL_SECONDS)

    def count(self) -> Cost:
        row = self._watcher.execute(
            """
            SELECT
                (SELECT xact_commit FROM pg_stat_database WHERE datname = %(name)s),
                pg_current_wal_insert_lsn() - '0/0'
            """,
            {"name": self._database},
        ).fetchone()
        assert row
        transactions, wal_bytes = map(float, row)
        return Cost(transactions, count_statements(self._log, self._database), wal_bytes)

    def measure(self) -> Cost:
        """What one task costs, without what the worker costs while it waits."""
        time.sleep(SETTLE_SECONDS)
        first = self.count()
        time.sleep(SETTLE_SECONDS)
        second = self.count()
        begun = time.monotonic()
        self._run_unwatched()
        time.sleep(SETTLE_SECONDS)
        idle = (second - first) / SETTLE_SECONDS
        return per_task(second, self.count(), idle, seconds=time.monotonic() - begun, tasks=self._tasks)


@contextlib.contextmanager
def served(
    postgres: EmbeddedPostgres, name: str, worker: tuple[Sequence[str], str], options: Sequence[str], tasks: int
) -> Iterator[Side]:
    postgres.create_database(name)
    info = postgres.conninfo(name)
    command, app = worker
    environ = {"PYTHONPATH": str(PROJECT), **(NO_PREFETCH if options else {})}
    with (
        tempfile.TemporaryDirectory() as folder,
        HorsiesWorker(
            app, conninfo=info, log=Path(folder) / "worker.log", folder=PROJECT, environ=environ,
            command=command, processes=None, options=options,
        ),
        open_hook(info) as hook,
        psycopg.connect(**postgres.conninfo(), autocommit=True) as watcher,
    ):  # fmt: skip
        migrate_ledger(hook.client)
        side = Side(hook, watcher, postgres.folder / "postgres.log", name, tasks)
        side.run()
        yield side


def measure_pair(postgres: EmbeddedPostgres, suffix: str, options: Sequence[str], given: Any) -> list[Figure]:
    with (
        served(postgres, f"ours{suffix}", OURS, options, given.tasks) as ours,
        served(postgres, f"plain{suffix}", PLAIN, options, given.tasks) as plain,
    ):
        sides: dict[str, Callable[[], float]] = {"ours": ours.run, "plain": plain.run}
        said = take_turns(sides, given.rounds)
        for name, seconds in said.items():
            told(f"{name}{suffix}, {given.tasks:,} short tasks", seconds)
        figures = [ratio(f"short_task_rate{suffix}_vs_plain_worker", said["plain"], said["ours"])]
        if not suffix:
            log_statements(postgres, "all")
            figures += costs(ours.measure(), plain.measure())
            log_statements(postgres, "none")
    return figures


def costs(ours: Cost, plain: Cost) -> list[Figure]:
    values = {"transactions_added_per_short_task": ours.transactions - plain.transactions}
    for cost, whose in ((ours, ""), (plain, "_upstream")):
        values |= {f"{each.name}_per_short_task{whose}": getattr(cost, each.name) for each in fields(Cost)}
    return [Figure(name, value, value, value) for name, value in values.items()]


def count_statements(log: Path, database: str) -> int:
    """The statements that the server has logged of a database; BEGIN and COMMIT count, each is a round trip too."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return sum(line.startswith(f"{database}|LOG:  ") and LOGGED.search(line) is not None for line in lines)


def log_statements(postgres: EmbeddedPostgres, kind: str) -> None:
    with psycopg.connect(**postgres.conninfo(), autocommit=True) as connection:
        for setting, value in (("log_line_prefix", "%d|"), ("log_statement", kind)):
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")


def measure(given: argparse.Namespace) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder) / "bench", durable=True) as postgres,
    ):
        return [*measure_pair(postgres, "", SAME, given), *measure_pair(postgres, "_defaults", (), given)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=2_000)
    options.add_argument("--rounds", type=int, default=5)
    sys.exit(main(measure, options))
