"""Sends many jobs with pgqueuer on asyncpg, its own choice; see Peer."""

import asyncio
import json
import os
import sys
import time

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


async def main() -> None:
    connection = await asyncpg.connect(os.environ["PEER_DATABASE"])
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for line in sys.stdin:
        count = int(line)
        arguments = [{"a": number, "b": 1} for number in range(count)]
        begun = time.perf_counter()
        ids = await queries.enqueue(["add"] * count, [json.dumps(each).encode() for each in arguments], [0] * count)
        elapsed = time.perf_counter() - begun
        assert len(set(ids)) == count
        print(elapsed, flush=True)
    await connection.close()


asyncio.run(main())
