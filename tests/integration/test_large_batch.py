"""100,000 items in chunks, with outcomes that are written by SQL as a worker would."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.pages import PageClient
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import cancelling
from airflow_horsies.models import CancelOutcome
from airflow_horsies.operators.starting import HorsiesStartTrigger
from airflow_horsies.operators.worker_free import encode_fields
from airflow_horsies.triggers import HorsiesBatchTrigger
from tests.integration.chunk_rig import INSTANCE, sql, submit
from tests.integration.releases import MOVED
from tests.integration.test_triggers import CONN_ID, event_of, store_connection

ITEMS = 100_000
MOST_MB = 400
# Airflow warns when a trigger keeps the event loop for 0.2 seconds; other machines are slower, or busy.
MOST_LOOP_SECONDS = 0.04

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

OUTCOMES = """
INSERT INTO airflow_horsies.items (
    horsies_task_id, number, outcome, attempt, tries, started_at, finished_at, value, hostname
)
SELECT horsies_task_id, ordinal - 1, 'COMPLETED', 1, 1, now(), now(), json_build_object('place', place)::text, 'here'
FROM airflow_horsies.chunks CROSS JOIN unnest(places) WITH ORDINALITY AS requested (place, ordinal)
"""
ENDS = """
SELECT count(horsies_move_task_to_history(
    id, 'COMPLETED', 'COMPLETE_FUSED', now(), '{"__h_task_result__":true,"ok":1,"err":null}', NULL, NULL
)) FROM horsies_tasks
"""


def play(*given: Any) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integration.large_batch", CONN_ID, *map(str, given)],
        cwd=root,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return told


def test_a_large_batch_needs_little_memory(
    monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str, hook: HorsiesHook
) -> None:
    store_connection(monkeypatch, postgres, database)
    submitted = play(ITEMS, "values", "submit")
    assert submitted["peak_mb"] < MOST_MB, submitted
    path, stored = submitted["trigger"]
    assert len(json.dumps(stored)) < 1_000
    assert sql(hook, "SELECT count(*), sum(size) FROM airflow_horsies.chunks") == [(ITEMS // 50, ITEMS)]

    sql(hook, OUTCOMES)
    sql(hook, ENDS)
    tracemalloc.start()
    event = asyncio.run(event_of(resolve_name(path)(**stored)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert event["reason"] == "ended"
    assert peak < 40e6, f"the trigger of {ITEMS:,} items took {peak / 1e6:.0f} MB"

    for results, expected in (
        ("values", [ITEMS, {"place": 0}, {"place": ITEMS - 1}]),
        ("counts", {"COMPLETED": ITEMS}),
    ):
        resumed = play(ITEMS, results, "resume")
        assert resumed["value"] == expected
        assert resumed["peak_mb"] < MOST_MB, resumed
    assert len(hook.client.read_batch(INSTANCE, life=1, size=ITEMS)) == ITEMS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk_size", [1_000, None])
def test_the_event_loop_of_the_triggerer_is_free_while_the_items_are_located(
    hook: HorsiesHook,
    postgres: EmbeddedPostgres,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    chunk_size: int | None,
) -> None:
    store_connection(monkeypatch, postgres, database)
    submit(hook, range(ITEMS), chunk_size)
    trigger = HorsiesBatchTrigger(task_instance=asdict(INSTANCE), life=1, size=ITEMS, horsies_conn_id=CONN_ID)

    async def locate() -> tuple[int, int, float]:
        client = await trigger._client()
        await client.read_queues()
        # Of this thread alone, so that a busy machine does not matter.
        began = time.thread_time()
        tasks = await trigger._find_task_ids(client)
        places = await trigger._places_of_items(client)
        return len(tasks), len(places), time.thread_time() - began

    tasks, places, seconds = asyncio.run(locate())
    assert (tasks, places) == ((100, ITEMS) if chunk_size else (ITEMS, 0))
    assert seconds < MOST_LOOP_SECONDS


@pytest.mark.timeout(300)
def test_the_event_loop_of_the_triggerer_is_free_while_a_killed_start_releases_what_it_sent(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(hook, range(ITEMS), None)
    trigger = HorsiesStartTrigger(fields=encode_fields({"horsies_conn_id": CONN_ID, "native": False}))
    trigger.submitter = asdict(INSTANCE)

    async def find(try_number: int) -> tuple[int, float]:
        client = AsyncClient(hook.settings)
        await client.read_queues()
        trigger._task_instance = SimpleNamespace(try_number=try_number)  # type: ignore[assignment]
        began = time.thread_time()
        return len(await trigger._find_task_ids(client)), time.thread_time() - began

    found, seconds = asyncio.run(find(1))
    assert (found, trigger.life) == (ITEMS, 1)
    assert seconds < 4 * MOST_LOOP_SECONDS
    # A later try is none of its business.
    assert asyncio.run(find(2))[0] == 0
    assert trigger.life is None

    async def release() -> tuple[dict[str, CancelOutcome], float]:
        client = AsyncClient(hook.settings)
        ids = (await client.read_ids_of_try(INSTANCE, try_number=1)).task_ids
        began = time.thread_time()
        return await client.release_tasks(ids, INSTANCE, life=1), time.thread_time() - began

    # They are cancelled a page at a time.
    pages = cancelling.pages
    monkeypatch.setattr(cancelling, "pages", lambda ids: islice(pages(ids), 2))
    outcomes, seconds = asyncio.run(release())
    cancelled = 2 * cancelling.CANCELS_AT_ONCE
    assert Counter(outcomes.values()) == {
        CancelOutcome.CANCELLED: cancelled,
        CancelOutcome.REQUESTED: ITEMS - cancelled,
    }
    assert seconds < 8 * MOST_LOOP_SECONDS


def test_the_rounds_of_an_item_take_its_chunk_apart_once(hook: HorsiesHook) -> None:
    submit(hook, range(10_000), 10_000)
    with PageClient(hook.settings) as client:
        (found,) = client.read_rounds(INSTANCE, 7_000, limit=50, in_chunks=True)
    assert found.number == 7_000

    def blocks() -> int:
        read = "SELECT toast_blks_hit + toast_blks_read FROM pg_statio_user_tables WHERE relname = 'chunks'"
        return int(sql(hook, read)[0][0])

    # The server counts what a connection has read when it is closed.
    deadline = time.monotonic() + 10
    while not blocks() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert 0 < blocks() < 1_000
