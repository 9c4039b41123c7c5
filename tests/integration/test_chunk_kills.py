"""Kills at random moments of chunks under way: each item ends once, and none runs again once its outcome is recorded.

Counted by side effects: each run of an item writes a line with a name of its own and returns that name. The name in the
recorded outcome must be that of the last run. ``CHUNK_KILLS`` is the number of kills, ``CHUNK_SEED`` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.models import RetryPolicy, TaskSpec, TaskState
from tests.integration.worker_rig import HERE, MakeRig, Rig

pytest.importorskip("horsies")

KILLS = int(os.environ.get("CHUNK_KILLS", "100"))
FEW_KILLS = 6
CHUNKS, ITEMS = 3, 40
NAP_SECONDS = 0.1
WORKERS = 2
WAIT_SECONDS = 300
# Long enough that the other worker takes over what a stopped one had.
STOPPED_SECONDS = 9.0


class Cluster:
    """Two workers on one database, and a load of chunks."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.runs = folder / "runs"
        self.runs.touch()
        self.info = rig.postgres.conninfo(rig.hook.settings.database.connect_args["dbname"])
        self.workers: list[HorsiesWorker] = [rig.worker]
        self.sent: list[str] = []
        self.done: list[str] = []
        # The keys of the items of each chunk.
        self.keys: dict[str, list[str]] = {}

    def start_worker(self) -> HorsiesWorker:
        worker = HorsiesWorker(
            "chunk_tasks:app",
            conninfo=self.info,
            log=self.folder / f"worker-{time.monotonic_ns()}.log",
            folder=self.folder,
            environ={"PYTHONPATH": str(HERE)},
            command=SPARK_WORKER,
        )
        worker.start()
        return worker

    def keep_workers(self) -> None:
        """Replace workers that have died."""
        self.workers = [worker for worker in self.workers if worker.process.running]
        while len(self.workers) < WORKERS:
            self.workers.append(self.start_worker())

    def keep_load(self) -> None:
        """Keep some chunks under way."""
        states = self.rig.hook.read_states(self.sent) if self.sent else {}
        self.done += [task_id for task_id, state in states.items() if state.is_terminal]
        self.sent = [task_id for task_id in self.sent if not states[task_id].is_terminal]
        while len(self.sent) < CHUNKS:
            self.sent.append(self.send(len(self.sent) + len(self.done)))

    def send(self, chunk: int) -> str:
        codes = ["WORKER_CRASHED", "TASK_TIMEOUT", "OUTCOMES_UNAVAILABLE"]
        policy = RetryPolicy.fixed([1] * 20, auto_retry_for=codes, jitter=False)
        keys = [f"{chunk}.{time.monotonic_ns()}.{number}" for number in range(ITEMS)]
        items = [{"seconds": NAP_SECONDS, "file": str(self.runs), "key": key} for key in keys]
        kwargs = {"items": items, "timeout_ms": None, "retry_policy": None, "isolate": "chunk"}
        task_id = self.rig.hook.enqueue_task(TaskSpec(task_name="nap[]", kwargs=kwargs, retry_policy=policy))
        self.keys[task_id] = keys
        return task_id

    def wait_for_runs(self, more: int) -> None:
        """Wait until that many items have started."""
        before = self.count_runs()
        give_up = time.monotonic() + WAIT_SECONDS
        while self.count_runs() < before + more:
            assert time.monotonic() < give_up, "no item starts"
            self.keep_load()
            time.sleep(0.02)

    def count_runs(self) -> int:
        return self.runs.read_bytes().count(b"\n")

    def stop(self) -> None:
        for worker in self.workers:
            if worker is not self.rig.worker:
                worker.stop()


# -- ways to kill --------------------


def kill_child(cluster: Cluster, draw: random.Random) -> None:
    with suppress(IndexError, psutil.NoSuchProcess):
        draw.choice(children(draw.choice(cluster.workers))).kill()


def kill_worker(cluster: Cluster, draw: random.Random) -> None:
    """As when a machine goes: the worker and its children at once."""
    worker = draw.choice(cluster.workers)
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(worker.process.pid)
        for process in (leader, *leader.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    give_up = time.monotonic() + 30
    while worker.process.running and time.monotonic() < give_up:
        time.sleep(0.02)


def suspend_worker(cluster: Cluster, draw: random.Random) -> None:
    """Until another worker has its chunks; then it goes on, and does not know."""
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(draw.choice(cluster.workers).process.pid)
        processes = [leader, *leader.children(recursive=True)]
        for process in processes:
            process.suspend()
        time.sleep(STOPPED_SECONDS)
        for process in processes:
            process.resume()


def end_backends(cluster: Cluster, draw: random.Random) -> None:
    """Every connection of our runtime, in whatever it does."""
    with psycopg.connect(**cluster.info, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'airflow_horsies worker'"
        )


def shut_down(cluster: Cluster, draw: random.Random) -> None:
    """In order: the worker lets its chunk end, or is killed when that takes too long."""
    draw.choice(cluster.workers).stop()


KINDS: dict[str, tuple[Callable[[Cluster, random.Random], None], int]] = {
    "child": (kill_child, 4),
    "worker": (kill_worker, 2),
    "suspend": (suspend_worker, 1),
    "backends": (end_backends, 3),
    "shutdown": (shut_down, 1),
}


def children(worker: HorsiesWorker) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(worker.process.pid).children()
        if "spawn_main" in " ".join(process.cmdline())
    ]


# -- what must hold --------------------


def find_violations(cluster: Cluster, task_ids: list[str]) -> list[str]:
    """Items with no or more than one outcome, and items that ran again after their outcome was recorded."""
    runs: dict[str, list[str]] = {}
    for line in cluster.runs.read_text().splitlines():
        key, token, _ = line.split()
        runs.setdefault(key, []).append(token)
    found: list[str] = []
    with psycopg.connect(**cluster.info, autocommit=True) as connection:
        for task_id in task_ids:
            rows = connection.execute(
                "SELECT number, outcome, value FROM airflow_horsies.items WHERE horsies_task_id = %s", (task_id,)
            ).fetchall()
            found += violations_of(task_id, cluster.keys[task_id], rows, runs)
    return found


def violations_of(task_id: str, keys: list[str], rows: list[Any], runs: dict[str, list[str]]) -> list[str]:
    found = []
    if sorted(number for number, _, _ in rows) != list(range(len(keys))):
        found.append(f"{task_id} has {len(rows)} outcomes of {len(keys)} items")
    for number, outcome, value in rows:
        made = runs.get(keys[number], [])
        if outcome != "COMPLETED" or not made or json.loads(value) != made[-1]:
            found.append(f"{task_id} item {number}: {outcome} {value}, runs {made}")
    return found


def run_kills(cluster: Cluster, kills: int, draw: random.Random) -> dict[str, int]:
    made = dict.fromkeys(KINDS, 0)
    names = [name for name, (_, weight) in KINDS.items() for _ in range(weight)]
    # A short run has each kind at least once.
    plan = [*KINDS, *(draw.choice(names) for _ in range(kills - len(KINDS)))]
    draw.shuffle(plan)
    for name in plan:
        cluster.keep_workers()
        cluster.keep_load()
        cluster.wait_for_runs(draw.randint(1, ITEMS))
        time.sleep(draw.random() * 2 * NAP_SECONDS)
        KINDS[name][0](cluster, draw)
        made[name] += 1
    return made


def finish(cluster: Cluster) -> list[str]:
    """Let everything that was sent end."""
    give_up = time.monotonic() + WAIT_SECONDS
    task_ids = cluster.done + cluster.sent
    while any(not state.is_terminal for state in cluster.rig.hook.read_states(task_ids).values()):
        assert time.monotonic() < give_up, "not all chunks ended"
        cluster.keep_workers()
        time.sleep(0.2)
    return task_ids


@pytest.fixture
def cluster(make_rig: MakeRig, tmp_path: Path) -> Any:
    rig = make_rig(f"chunk_kills_{time.monotonic_ns()}", app="chunk_tasks:app")
    made = Cluster(rig, tmp_path)
    yield made
    made.stop()


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_no_kill_loses_an_item_or_runs_it_again_once_it_has_an_outcome(cluster: Cluster, kills: int) -> None:
    seed = int(os.environ.get("CHUNK_SEED", random.SystemRandom().randint(0, 2**32)))
    print(f"CHUNK_SEED={seed}")
    made = run_kills(cluster, kills, random.Random(seed))
    task_ids = finish(cluster)
    runs, items = cluster.count_runs(), len(task_ids) * ITEMS
    print(f"{made}: {len(task_ids)} chunks, {items} items, {runs} runs")
    states = cluster.rig.hook.read_states(task_ids)
    assert set(states.values()) == {TaskState.COMPLETED}, (seed, states)
    assert find_violations(cluster, task_ids) == [], seed
    # Something was repeated, or the kills have hit nothing.
    assert runs > items
