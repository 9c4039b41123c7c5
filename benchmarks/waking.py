"""How soon a deferred waiter wakes after its task ended, and what waiting costs: ours beside a trigger that polls.

.venv/bin/python -m benchmarks.waking [--waiters 1 100 1000 10000] [--endings 300] [--rounds 3]

As many triggers as asked for wait in one event loop, as in a triggerer. One task after another is ended, each in a
transaction of its own; measured is the time from just before its commit to the trigger's event.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from airflow.providers.standard.triggers.external_task import WorkflowTrigger

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.triggers import HorsiesTrigger
from benchmarks.databases import connection_fields, durable_postgres, make_database
from benchmarks.figures import Figure, main, ratio

# Of the standard provider's trigger that waits for what another DAG does.
POLL_SECONDS: float = inspect.signature(WorkflowTrigger).parameters["poke_interval"].default
POLLING = f"polling every {POLL_SECONDS:g} s"
POLLING_WAITERS = 100
IDLE_SECONDS = 3.0
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class Waited:
    """What came of so many waiters."""

    waiters: int
    woken_seconds: list[float]
    commit_seconds: list[float]
    bytes_each: float
    idle_cpu_share: float
    backends: int

    @property
    def p50(self) -> float:
        return statistics.median(self.woken_seconds)

    @property
    def p99(self) -> float:
        ordered = sorted(self.woken_seconds)
        return ordered[max(0, round(len(ordered) * 0.99) - 1)]

    def tell(self, name: str) -> None:
        print(
            f"  {name:<34} {self.waiters:>6,} waiters: p50 {self.p50 * 1e3:8.1f} ms, p99 {self.p99 * 1e3:8.1f} ms, "
            f"commit {statistics.median(self.commit_seconds) * 1e3:5.2f} ms, {self.bytes_each / 1e3:6.1f} KB each, "
            f"{self.idle_cpu_share:5.1%} of a core while idle, {self.backends} connections",
            flush=True,
        )


async def wait_with_trigger(task_id: str) -> None:
    async for _ in HorsiesTrigger(task_ids=[task_id]).run():
        return


async def wait_by_polling(task_id: str) -> None:
    hook = HorsiesHook()
    await asyncio.sleep(random.uniform(0, POLL_SECONDS))
    while not (await hook.read_task_async(task_id)).state.is_terminal:
        await asyncio.sleep(POLL_SECONDS)


def end_task(connection: psycopg.Connection[Any], task_id: str) -> tuple[float, float]:
    """The moment just before the commit, and how long the commit took."""
    connection.execute("SELECT outcome FROM horsies_cancel_locked_task(%s::uuid, ARRAY['PENDING'])", (task_id,))
    moment = time.perf_counter()
    connection.commit()
    return moment, time.perf_counter() - moment


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def wait_for(
    hook: HorsiesHook, wait: Callable[[str], Awaitable[None]], *, waiters: int, endings: int, pause: float
) -> Waited:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=6))
    # Someone is always left who waits, so that what the last one to leave closes stays open.
    ids = hook.enqueue_tasks([spec] * (max(waiters, endings) + 1))
    woken: dict[str, float] = {}
    ended: dict[str, float] = {}
    commits: list[float] = []

    async def wait_and_tell(task_id: str) -> None:
        await wait(task_id)
        woken[task_id] = time.perf_counter()

    def begin(task_id: str) -> asyncio.Task[None]:
        return asyncio.create_task(wait_and_tell(task_id))

    queue = list(ids)
    random.shuffle(queue)
    before = resident_bytes()
    running = {task_id: begin(task_id) for task_id in queue[:waiters]}
    left = queue[waiters:]
    await asyncio.sleep(IDLE_SECONDS)
    bytes_each = (resident_bytes() - before) / waiters
    cpu = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (time.process_time() - cpu) / IDLE_SECONDS
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        found = connection.execute(BACKENDS).fetchone()
        connection.commit()
        for number in range(endings):
            task_id = queue[number]
            if left and waiters <= endings:
                # As many wait at each ending.
                later = left.pop(0)
                running[later] = begin(later)
                await asyncio.sleep(0.02)
            ended[task_id], commit = await asyncio.to_thread(end_task, connection, task_id)
            commits.append(commit)
            await asyncio.sleep(pause)
        while len(woken) < len(ended):
            await asyncio.sleep(0.05)
    for task in running.values():
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)
    hook.cancel_tasks(set(ids) - set(ended))
    assert found
    return Waited(
        waiters, [woken[task_id] - at for task_id, at in ended.items()], commits, bytes_each, idle, int(found[0])
    )


def in_fresh_process(kind: str, waiters: int, endings: int) -> Waited:
    """Memory that an earlier round gave back to Python would hide what this one takes."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_wait, (kind, waiters, endings))


def _wait(kind: str, waiters: int, endings: int) -> Waited:
    wait, pause = (wait_by_polling, 0.05) if kind == POLLING else (wait_with_trigger, 0.02)
    with HorsiesHook() as hook:
        waited = asyncio.run(wait_for(hook, wait, waiters=waiters, endings=endings, pause=pause))
    waited.tell(kind)
    return waited


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, durable_postgres(Path(name) / "bench") as postgres:
        info = make_database(postgres, "bench")
        os.environ["AIRFLOW_CONN_HORSIES_DEFAULT"] = json.dumps(connection_fields(info))
        ours: dict[int, list[Waited]] = {waiters: [] for waiters in given.waiters}
        polling = []
        for _ in range(given.rounds):
            for waiters, said in ours.items():
                said.append(in_fresh_process("HorsiesTrigger", waiters, given.endings))
            polling.append(in_fresh_process(POLLING, POLLING_WAITERS, POLLING_WAITERS - 1))
    p99 = {waiters: [each.p99 for each in said] for waiters, said in ours.items()}
    polled_p99 = [each.p99 for each in polling]
    commits = {waiters: [statistics.median(each.commit_seconds) for each in said] for waiters, said in ours.items()}
    figures = []
    if 1_000 in ours:
        figures.append(ratio("wake_p99_vs_polling", polled_p99, p99[1_000]))
    if 10_000 in ours:
        figures.append(ratio("wake_p99_vs_polling_10000", polled_p99, p99[10_000]))
        sizes = [each.bytes_each for each in ours[10_000]]
        figures.append(Figure("bytes_per_waiter_10000", statistics.median(sizes), min(sizes), max(sizes)))
    if {1, 1_000} <= set(ours):
        figures.append(ratio("notifier_commit_1000_vs_1", commits[1_000], commits[1]))
    return figures


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--waiters", type=int, nargs="+", default=[1, 100, 1_000, 10_000])
    options.add_argument("--endings", type=int, default=300)
    options.add_argument("--rounds", type=int, default=3)
    sys.exit(main(measure, options))
