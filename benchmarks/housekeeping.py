"""A long-lived deployment: many short tasks with logs through one worker; nobody calls prune, our tables stay small.

.venv/bin/python -m benchmarks.housekeeping [TASKS] [--lines 5] [--out FILE]

Retention is a matter of seconds here, so that the tables must be emptied many times over. horsies keeps ended tasks in
partitions of whole days; in their place this script removes what ended a while ago.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec
from benchmarks.databases import open_hook

PROJECT = Path(__file__).parents[1]
TABLES = ("submissions", "attempts", "logs", "progress", "signals", "cancel_requests")
# Seconds: horsies keeps a task that ended, our records of one it no longer keeps, log lines, between two rounds.
KEEP_SECONDS, PRUNE_AFTER_SECONDS, LOG_AGE_SECONDS, EVERY_SECONDS = 20, 2, 10, 2
# Whatever ended longer ago than this is gone, the rounds of a worker under full load included.
BOUND_SECONDS = 120
SAMPLE_SECONDS = 1.0
BATCH = 100
MOST_WAITING = 400
GIVE_UP_SECONDS = 600


@dataclass
class Outcome:
    """What a run showed.

    :param most_rows: the most rows of each table at any time.
    :param most_tasks: how many tasks were sent, at most, within the bound; no table may know more of them.
    :param last_rows: what was left in the end.
    """

    tasks: int
    lines: int
    seconds: float = 0.0
    most_tasks: int = 0
    most_rows: dict[str, int] = field(default_factory=dict)
    most_bytes: int = 0
    last_rows: dict[str, int] = field(default_factory=dict)

    @property
    def violations(self) -> list[str]:
        bounds = {table: self.most_tasks * (self.lines + 2 if table == "logs" else 1) for table in TABLES}
        too_many = [
            f"{table} had {rows:,} rows, more than {bounds[table]:,}"
            for table, rows in self.most_rows.items()
            if rows > bounds[table]
        ]
        return too_many + [f"{rows:,} rows are left in {table}" for table, rows in self.last_rows.items() if rows]


def run(postgres: EmbeddedPostgres, *, tasks: int, lines: int, folder: Path) -> Outcome:
    """Send the tasks through a worker and watch our tables until they are empty."""
    postgres.create_database("housekeeping")
    info = postgres.conninfo("housekeeping")
    environ = {
        "PYTHONPATH": str(PROJECT),
        "HORSIES_PRUNE_EVERY_SECONDS": str(EVERY_SECONDS),
        "HORSIES_PRUNE_AFTER_SECONDS": str(PRUNE_AFTER_SECONDS),
        "HORSIES_LOG_AGE_SECONDS": str(LOG_AGE_SECONDS),
    }
    worker = HorsiesWorker(
        "benchmarks.housekeeping_tasks:app",
        conninfo=info,
        log=folder / "worker.log",
        folder=PROJECT,
        environ=environ,
        loglevel="WARNING",
        command=SPARK_WORKER,
    )
    with worker, open_hook(info) as hook, psycopg.connect(**info, autocommit=True) as own:
        migrate_ledger(hook.client)
        return _Deployment(hook, own, Outcome(tasks, lines)).run()


class _Deployment:
    def __init__(self, hook: HorsiesHook, own: psycopg.Connection[Any], outcome: Outcome) -> None:
        self._hook = hook
        self._own = own
        self._outcome = outcome
        self._sent = 0
        self._sendings: deque[tuple[float, int]] = deque()
        self._sampled = 0.0
        self._began = time.monotonic()

    def run(self) -> Outcome:
        outcome = self._outcome
        while self._sent < outcome.tasks:
            self._send_some()
            self._look()
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while (self._live() or any(self._rows().values())) and time.monotonic() < give_up:
            self._look()
            time.sleep(0.2)
        outcome.seconds = time.monotonic() - self._began
        outcome.last_rows = self._rows()
        return outcome

    def _send_some(self) -> None:
        if self._live() > MOST_WAITING:
            time.sleep(0.1)
            return
        count = min(BATCH, self._outcome.tasks - self._sent)
        specs = [
            TaskSpec(task_name="bench.talk", kwargs={"number": self._sent + number, "lines": self._outcome.lines})
            for number in range(count)
        ]
        instance = TaskInstanceKey(dag_id="bench", run_id=f"run {self._sent}", task_id="talk")
        self._hook.submit_tasks(specs, instance, AirflowTry(try_number=1))
        self._sent += count
        self._sendings.append((time.monotonic(), count))

    def _look(self) -> None:
        if time.monotonic() < self._sampled + SAMPLE_SECONDS:
            return
        self._sampled = time.monotonic()
        self._own.execute(
            "DELETE FROM horsies_task_history WHERE terminal_at < now() - make_interval(secs => %s)", (KEEP_SECONDS,)
        )
        outcome = self._outcome
        while self._sendings and self._sendings[0][0] < self._sampled - BOUND_SECONDS:
            self._sendings.popleft()
        outcome.most_tasks = max(outcome.most_tasks, sum(count for _, count in self._sendings))
        for table, rows in self._rows().items():
            outcome.most_rows[table] = max(outcome.most_rows.get(table, 0), rows)
        outcome.most_bytes = max(outcome.most_bytes, self._bytes())
        print(f"\r{self._sent:>9,} sent, {self._rows()}", end="", flush=True)

    def _live(self) -> int:
        return self._count("SELECT count(*) FROM horsies_tasks")

    def _rows(self) -> dict[str, int]:
        return {table: self._count(f"SELECT count(*) FROM airflow_horsies.{table}") for table in TABLES}

    def _bytes(self) -> int:
        return self._count(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
            " WHERE relnamespace = 'airflow_horsies'::regnamespace AND relkind = 'r'"
        )

    def _count(self, sql: Any) -> int:
        row = self._own.execute(sql).fetchone()
        return int(row[0]) if row else 0


def figures(outcome: Outcome) -> Mapping[str, Any]:
    return {**asdict(outcome), "seconds": round(outcome.seconds), "violations": outcome.violations}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tasks", type=int, nargs="?", default=100_000)
    options.add_argument("--lines", type=int, default=5)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder, "postgres"), durable=False) as postgres:
        outcome = run(postgres, tasks=given.tasks, lines=given.lines, folder=Path(folder))
    text = json.dumps(figures(outcome), indent=2)
    print(f"\n{text}")
    if given.out is not None:
        given.out.write_text(f"{text}\n")
    return int(bool(outcome.violations))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
