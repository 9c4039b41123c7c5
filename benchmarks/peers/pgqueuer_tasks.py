"""A worker of pgqueuer, until it is terminated."""

import asyncio
import json
import os

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job


async def main() -> None:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["PEER_DATABASE"])))

    @queuer.entrypoint("add")
    async def add(job: Job) -> None:
        given = json.loads(job.payload or b"{}")
        assert given["a"] + given["b"] == given["a"] + 1

    await queuer.run()


asyncio.run(main())
