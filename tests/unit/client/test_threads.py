from __future__ import annotations

import asyncio
import threading
import time

import pytest

from airflow_horsies.client import threads
from airflow_horsies.client.threads import THREADS, Threads, ThreadsBlocked


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.3)


def make_threads() -> Threads:
    return Threads("test", purpose="tests", blocked_by="a test")


def test_work_behind_blocked_threads_is_given_up_and_never_begun() -> None:
    release, begun = threading.Event(), threading.Event()

    async def play() -> None:
        pool = make_threads()
        blocked = [asyncio.create_task(pool.run(release.wait)) for _ in range(THREADS)]
        await asyncio.sleep(0)
        with pytest.raises(ThreadsBlocked, match=r"All 4 threads of this process for tests .* by a test"):
            await pool.run(begun.set)
        release.set()
        assert await asyncio.gather(*blocked) == [True] * THREADS
        await pool.run(lambda: None)

    asyncio.run(play())
    assert not begun.is_set()


def test_work_waits_as_long_as_threads_end_something() -> None:
    async def play() -> list[None]:
        pool = make_threads()
        return await asyncio.gather(*(pool.run(lambda: time.sleep(0.1)) for _ in range(6 * THREADS)))

    assert len(asyncio.run(play())) == 6 * THREADS


def test_work_of_a_cancelled_trigger_is_not_begun() -> None:
    release, begun = threading.Event(), threading.Event()

    async def play() -> None:
        pool = make_threads()
        blocked = [asyncio.create_task(pool.run(release.wait)) for _ in range(THREADS)]
        waiting = asyncio.create_task(pool.run(begun.set))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        release.set()
        await asyncio.gather(*blocked)
        await pool.run(lambda: None)

    asyncio.run(play())
    assert not begun.is_set()
