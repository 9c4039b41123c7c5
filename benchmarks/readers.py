"""Short tasks through a worker while readers hold a snapshot, which keeps Postgres from removing dead rows.

.venv/bin/python -m benchmarks.readers [--seconds 120] [--readers 3] [--rounds 2]

The queue is kept filled; a figure is how many tasks ended in the time. A vacuum runs between two measurements, so that
none inherits what another left.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from airflow_horsies.db.listener import TASK_DONE
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from benchmarks.databases import durable_postgres, open_hook
from benchmarks.figures import Figure, main, ratio, take_turns

HERE = Path(__file__).parent
FILLED, ADDED = 300, 200
LOOK_SECONDS = 0.2


class Load:
    """Keeps the queue filled, and counts what ends by its notifications: to count rows costs more under readers."""

    def __init__(self, hook: HorsiesHook, own: psycopg.Connection[Any]) -> None:
        self._hook = hook
        self._own = own
        self._live = 0
        own.execute(f"LISTEN {TASK_DONE}")

    def rate(self, seconds: float) -> float:
        """Tasks that ended per second."""
        self._fill()
        begun, ended = time.monotonic(), 0
        while time.monotonic() < begun + seconds:
            heard = sum(1 for _ in self._own.notifies(timeout=LOOK_SECONDS))
            ended += heard
            self._live -= heard
            self._fill()
        return ended / (time.monotonic() - begun)

    def _fill(self) -> None:
        while self._live < FILLED:
            self._hook.enqueue_tasks(
                TaskSpec(task_name="bench.add", kwargs={"a": number, "b": 1}) for number in range(ADDED)
            )
            self._live += ADDED


@contextlib.contextmanager
def snapshots(info: dict[str, Any], readers: int) -> Iterator[None]:
    """So many transactions that have read the tasks and go on seeing them as they were."""
    with contextlib.ExitStack() as opened:
        for _ in range(readers):
            connection = opened.enter_context(psycopg.connect(**info))
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM horsies_tasks")
        yield


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as opened:
        folder = Path(name)
        postgres = opened.enter_context(durable_postgres(folder / "postgres"))
        postgres.create_database("readers")
        info = postgres.conninfo("readers")
        worker = HorsiesWorker(
            "short_tasks:app", conninfo=info, log=folder / "worker.log", folder=HERE,
            environ={"PYTHONPATH": str(HERE.parent)}, loglevel="WARNING", command=SPARK_WORKER,
        )  # fmt: skip
        opened.enter_context(worker)
        hook = opened.enter_context(open_hook(info))
        own = opened.enter_context(psycopg.connect(**info, autocommit=True))
        load = Load(hook, own)

        def rate(readers: int) -> float:
            own.execute("VACUUM horsies_tasks")
            with snapshots(info, readers):
                found = load.rate(given.seconds)
            print(f"  {readers} readers: {found:,.1f} tasks per second", flush=True)
            return found

        load.rate(5)
        said = take_turns({"readers": lambda: rate(given.readers), "alone": lambda: rate(0)}, given.rounds)
    return [ratio("throughput_under_readers", said["readers"], said["alone"])]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=120)
    options.add_argument("--readers", type=int, default=3)
    options.add_argument("--rounds", type=int, default=2)
    sys.exit(main(measure, options))
