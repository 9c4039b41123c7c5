"""What a database with many tasks costs: submitting, reading, listing, and what the page of a DAG run reads.

.venv/bin/python -m benchmarks.growth [--tasks 10000 100000 1000000] [--calls 100] [--rounds 7]

Ten million: ``--tasks 10000 10000000``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec
from benchmarks.databases import durable_postgres, make_full_database, open_hook
from benchmarks.figures import Figure, main, ratio, take_turns, timed, told
from tests.integration.many_tasks import TASKS_OF_RUN, run_ids
from tests.integration.releases import MOVED

DAYS = 14
SOME_IDS = (
    "SELECT task_id::text FROM horsies_task_history WHERE random() < 20000.0 / greatest(20000, %s) ORDER BY random()"
)


class Site:
    """A database with so many tasks, and what is asked of it."""

    def __init__(self, hook: HorsiesHook, tasks: int) -> None:
        self.tasks = tasks
        self._hook = hook
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            self._ids = [row[0] for row in connection.execute(SOME_IDS, (tasks,))]
        self._number = 0

    def submit(self) -> None:
        self._number += 1
        instance = TaskInstanceKey(dag_id="bench", run_id=f"run {self._number}", task_id="add")
        spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2})
        self._hook.submit_task(spec, instance, AirflowTry(try_number=1, run_started_at=datetime.now(UTC)))

    def read(self) -> None:
        self._hook.read_task(random.choice(self._ids))

    def list(self) -> None:
        self._hook.list_tasks(limit=100)

    def run_page(self) -> None:
        runs = self.tasks // TASKS_OF_RUN
        dag_id, run_id = run_ids(random.randrange(runs // 2, runs))
        sent = self._hook.client.read_submissions_of_run(dag_id, run_id)
        assert self._hook.read_tasks(each.horsies_task_id for each in sent)


WAYS: dict[str, Callable[[Site], None]] = {
    "submit": Site.submit,
    "read": Site.read,
    "list": Site.list,
    "run_page": Site.run_page,
}


def measure(given: argparse.Namespace) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_things:
        postgres = open_things.enter_context(durable_postgres(Path(folder) / "bench"))
        sites = []
        for tasks in given.tasks:
            print(f"  filling a database with {tasks:,} tasks …", flush=True)
            info = make_full_database(postgres, release=MOVED, tasks=tasks, days=DAYS)
            sites.append(Site(open_things.enter_context(open_hook(info)), tasks))
        for name, way in WAYS.items():

            def some(site: Site, way: Callable[[Site], None] = way) -> Callable[[], float]:
                return lambda: timed(lambda: [way(site) for _ in range(given.calls)]) / given.calls

            runs = {str(site.tasks): some(site) for site in sites}
            for run in runs.values():
                run()
            said = take_turns(runs, given.rounds)
            for tasks, seconds in said.items():
                told(f"{name}, {int(tasks):,} tasks", seconds)
            first = sites[0]
            for site in sites[1:]:
                grown = f"{name}_growth_{_power(site.tasks)}_vs_{_power(first.tasks)}"
                figures.append(ratio(grown, said[str(site.tasks)], said[str(first.tasks)]))
    return figures


def _power(tasks: int) -> str:
    return f"{tasks:.0e}".replace("e+0", "e")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--calls", type=int, default=100)
    options.add_argument("--rounds", type=int, default=7)
    sys.exit(main(measure, options))
