"""What a short task costs Postgres, and how many run in a second: our runtime beside a plain upstream worker.

.venv/bin/python -m benchmarks.worker_cost [--tasks 2000] [--rounds 5]

Each worker has a database of its own on the same server, and they take turns. First both have the same settings: two
processes that are never replaced, and nothing claimed ahead. Then each has its own defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HORSIES_WORKER, SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from benchmarks.counting import Cost, Meter, log_statements, per_task
from benchmarks.databases import durable_postgres, open_hook
from benchmarks.figures import Figure, main, ratio, take_turns, told

PROJECT = Path(__file__).parents[1]
OURS, PLAIN = (SPARK_WORKER, "benchmarks.short_tasks:app"), (HORSIES_WORKER, "benchmarks.plain_short_tasks:app")
SAME = ("--processes", "2", "--max-tasks-per-child", "1000000")
NO_PREFETCH = {"BENCH_PREFETCH": "0"}
# A connection reports what it counted when it has been idle for ten seconds.
SETTLE_SECONDS = 12.0
WAIT_SECONDS = 600
POLL_SECONDS = 2.0
# Of what is counted, what is published here; benchmarks.sizing has the rest.
PUBLISHED = ("transactions", "statements", "wal_bytes")


class Side:
    """A worker with a database of its own."""

    def __init__(self, hook: HorsiesHook, meter: Meter, tasks: int) -> None:
        self._hook = hook
        self._meter = meter
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

    def measure(self) -> Cost:
        """What one task costs, without what the worker costs while it waits."""
        time.sleep(SETTLE_SECONDS)
        first = self._meter.count()
        time.sleep(SETTLE_SECONDS)
        second = self._meter.count()
        begun = time.monotonic()
        self._run_unwatched()
        time.sleep(SETTLE_SECONDS)
        idle = (second - first) / SETTLE_SECONDS
        return per_task(second, self._meter.count(), idle, seconds=time.monotonic() - begun, tasks=self._tasks)

    def statements(self) -> dict[str, float]:
        """How many of each kind a task takes, while the server logs them."""
        before = self._meter.kinds()
        self._run_unwatched()
        time.sleep(1)
        return {kind: count / self._tasks for kind, count in (self._meter.kinds() - before).items()}


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
        ) as process,
        open_hook(info) as hook,
        contextlib.closing(Meter(postgres, name, process.process.pid)) as meter,
    ):  # fmt: skip
        migrate_ledger(hook.client)
        side = Side(hook, meter, tasks)
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
        values |= {f"{name}_per_short_task{whose}": getattr(cost, name) for name in PUBLISHED}
    return [Figure(name, value, value, value) for name, value in values.items()]


def measure(given: argparse.Namespace) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        durable_postgres(Path(folder) / "bench") as postgres,
    ):
        return [*measure_pair(postgres, "", SAME, given), *measure_pair(postgres, "_defaults", (), given)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=2_000)
    options.add_argument("--rounds", type=int, default=5)
    sys.exit(main(measure, options))
