"""How soon does a deferred waiter wake after its task ended? Ours beside a trigger that polls, in one run.

.venv/bin/python benchmarks/wake_up.py [--waiters 1000] [--endings 300]

As many triggers as asked for wait in one event loop, as in a triggerer. One task after another is ended, each in a
transaction of its own; measured is the time from just before its commit to the trigger's event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import psycopg

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.triggers import HorsiesTrigger

TESTS = Path(__file__).parents[1] / "tests" / "integration"
# What the deferrable operators of Airflow's standard and SQL providers use when nothing is said.
POLL_SECONDS = 5.0


async def wait_with_trigger(task_id: str) -> None:
    async for _ in HorsiesTrigger(task_ids=[task_id]).run():
        return


async def wait_by_polling(task_id: str) -> None:
    hook = HorsiesHook()
    await asyncio.sleep(random.uniform(0, POLL_SECONDS))
    while not (await hook.get_task_async(task_id)).state.is_terminal:
        await asyncio.sleep(POLL_SECONDS)


def end_task(connection: psycopg.Connection, task_id: str) -> float:
    """The moment just before the commit."""
    connection.execute("SELECT outcome FROM horsies_cancel_locked_task(%s::uuid, ARRAY['PENDING'])", (task_id,))
    moment = time.perf_counter()
    connection.commit()
    return moment


async def measure(
    hook: HorsiesHook, wait: Callable[[str], Awaitable[None]], *, waiters: int, endings: int, pause: float
) -> tuple[list[float], int]:
    """Seconds from commit to wake-up of each ending, and the number of listening backends meanwhile."""
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=6))
    ids = hook.enqueue_many([spec] * waiters)
    woken: dict[str, float] = {}

    async def wait_and_tell(task_id: str) -> None:
        await wait(task_id)
        woken[task_id] = time.perf_counter()

    tasks = [asyncio.create_task(wait_and_tell(task_id)) for task_id in ids]
    await asyncio.sleep(3)
    ended: dict[str, float] = {}
    with psycopg.connect(**hook._postgres.connect_args) as connection:
        for task_id in random.sample(ids, endings):
            ended[task_id] = await asyncio.to_thread(end_task, connection, task_id)
            await asyncio.sleep(pause)
        listeners = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%' AND datname = current_database()"
        ).fetchone()
        connection.commit()
        while len(woken) < endings:
            await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    hook.cancel_many(set(ids) - set(ended))
    return [woken[task_id] - moment for task_id, moment in ended.items()], listeners[0] if listeners else 0


def told(name: str, seconds: list[float], listeners: int) -> dict[str, float]:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99) - 1]
    print(
        f"{name:<28} p50 {p50 * 1000:9.1f} ms   p99 {p99 * 1000:9.1f} ms   listening backends {listeners}", flush=True
    )
    return {"p50": p50, "p99": p99}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--waiters", type=int, default=1_000)
    arguments.add_argument("--endings", type=int, default=300)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "bench", durable=False) as postgres:
        folder = Path(name)
        folder.chmod(0o711)
        info = postgres.conninfo()
        worker = HorsiesWorker("contract_tasks:app", conninfo=info, log=folder / "worker.log", folder=TESTS)
        with worker:  # it completes horsies' tables
            pass
        os.environ["AIRFLOW_CONN_HORSIES_DEFAULT"] = json.dumps(
            {
                "conn_type": "horsies",
                "host": info["host"],
                "port": info["port"],
                "login": info["user"],
                "password": info["password"],
                "schema": info["dbname"],
            }
        )
        with HorsiesHook() as hook:
            ours = told(
                f"HorsiesTrigger, {given.waiters} waiters",
                *asyncio.run(
                    measure(hook, wait_with_trigger, waiters=given.waiters, endings=given.endings, pause=0.02)
                ),
            )
            polling_waiters = min(given.waiters, 100)
            polling = told(
                f"polling every {POLL_SECONDS:.0f} s, {polling_waiters} waiters",
                *asyncio.run(
                    measure(hook, wait_by_polling, waiters=polling_waiters, endings=min(given.endings, 60), pause=0.1)
                ),
            )
    print(json.dumps({"wake_p99_vs_polling": round(polling["p99"] / ours["p99"], 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
