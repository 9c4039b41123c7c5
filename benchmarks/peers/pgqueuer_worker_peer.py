"""Runs many short jobs through as many workers of pgqueuer as ours has processes; see Peer."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

WORKER = [sys.executable, Path(__file__).with_name("pgqueuer_tasks.py")]
FAILED = "SELECT count(*) FROM pgqueuer_log WHERE status NOT IN ('queued', 'picked', 'successful')"


async def run(connection: asyncpg.Connection, workers: list[subprocess.Popen[bytes]]) -> None:
    queries = Queries(AsyncpgDriver(connection))
    for line in sys.stdin:
        count = int(line)
        begun = time.perf_counter()
        payloads = [json.dumps({"a": number, "b": 1}).encode() for number in range(count)]
        await queries.enqueue(["add"] * count, payloads, [0] * count)
        while await connection.fetchval("SELECT count(*) FROM pgqueuer"):
            assert all(worker.poll() is None for worker in workers)
            await asyncio.sleep(0.01)
        print(time.perf_counter() - begun, flush=True)
    assert not await connection.fetchval(FAILED)


async def main() -> None:
    connection = await asyncpg.connect(os.environ["PEER_DATABASE"])
    await Queries(AsyncpgDriver(connection)).install()
    workers = [subprocess.Popen(WORKER, stdout=sys.stderr) for _ in range(int(os.environ["PEER_PROCESSES"]))]
    try:
        await run(connection, workers)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(timeout=60)
        await connection.close()


asyncio.run(main())
