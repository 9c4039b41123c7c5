"""How many connections a worker, a triggerer and a waiting task of Airflow have open, at most."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.triggers import HorsiesTrigger
from benchmarks.databases import connection_fields

CONN_ID = "horsies_bench"
AIRFLOW, WORKER = "airflow", "worker"
SAMPLE_SECONDS = 0.05
OPEN = """
    SELECT count(*) FILTER (WHERE application_name = 'airflow-horsies'),
           count(*) FILTER (WHERE application_name <> 'airflow-horsies')
    FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'
"""


@contextmanager
def sampled(postgres: EmbeddedPostgres, database: str) -> Iterator[Counter[str]]:
    """The most connections of Airflow's side and of workers that were open at once; written on the way."""
    most: Counter[str] = Counter()
    ended = threading.Event()

    def sample() -> None:
        with psycopg.connect(**postgres.conninfo(), autocommit=True) as own:
            while not ended.is_set():
                row = own.execute(OPEN, (database,)).fetchone()
                assert row
                most[AIRFLOW], most[WORKER] = max(most[AIRFLOW], row[0]), max(most[WORKER], row[1])
                time.sleep(SAMPLE_SECONDS)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def of_triggerer(postgres: EmbeddedPostgres, info: Mapping[str, Any], hook: HorsiesHook, triggers: int) -> int:
    """The most that so many triggers in one event loop have open, from their start until they wait."""
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = json.dumps(connection_fields(info))
    later = TaskSpec(task_name="bench.add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=1))
    ids = hook.enqueue_tasks([later] * triggers)
    hook.close()
    with sampled(postgres, info["dbname"]) as most:
        asyncio.run(_wait(ids))
    hook.cancel_tasks(ids)
    return most[AIRFLOW]


async def _wait(ids: list[str]) -> None:
    async def fire(task_id: str) -> None:
        async for _ in HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID).run():
            return

    waiting = [asyncio.create_task(fire(task_id)) for task_id in ids]
    await asyncio.sleep(10)
    assert not any(task.done() for task in waiting), "a trigger fired"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
