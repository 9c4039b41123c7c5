from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_horsies.client import threads
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import DatabaseBusy

SETTINGS = ClientSettings(database=Database(connect_args={"dbname": "work"}, listen_args={"dbname": "work"}))
# More than the default threads of an event loop.
CALLS = 40


def test_blocked_calls_keep_no_address_from_being_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.3)
    release, names = threading.Event(), set()

    def block(client: Client) -> bool:
        names.add(threading.current_thread().name.rpartition("_")[0])
        return release.wait(60)

    async def play() -> list[bool | BaseException]:
        client = AsyncClient(SETTINGS)
        blocked = [asyncio.create_task(client.in_thread(block)) for _ in range(CALLS)]
        try:
            await asyncio.sleep(0.1)
            assert await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("localhost", 5432), 5)
            await asyncio.sleep(1)
        finally:
            release.set()
        return await asyncio.gather(*blocked, return_exceptions=True)

    outcomes = asyncio.run(play())
    assert names == {"horsies-client"}
    assert outcomes[: threads.THREADS] == [True] * threads.THREADS
    # Those that had not begun are tried again by their triggers.
    refused = outcomes[threads.THREADS :]
    assert all(isinstance(outcome, DatabaseBusy) for outcome in refused)
    assert "All 4 threads of this process for large batches have been blocked" in str(refused[0])
