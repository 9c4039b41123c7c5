"""The hub on real databases: one listening connection, whatever the number of waiters and whatever is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from airflow_horsies.client import hub as hub_module
from airflow_horsies.client.hub import Hub, Waiter, hub_of
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import InvalidTask, SchemaMissing
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

T = TypeVar("T")

LATER = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=1))
BACKENDS = """SELECT count(*) FILTER (WHERE query ILIKE 'listen%%'), count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'airflow-horsies'"""

on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


def run(check: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await check

    return asyncio.run(bounded())


def backends(hook: HorsiesHook) -> tuple[int, int]:
    """How many connections of this package listen, and how many there are, the hook's own included."""
    arguments = {**hook.settings.database.connect_args, "application_name": "test"}
    with psycopg.connect(**arguments) as connection:
        row = connection.execute(BACKENDS).fetchone()
    assert row is not None
    return row


def terminate_backends(hook: HorsiesHook, *, only_listening: bool = False) -> int:
    arguments = {**hook.settings.database.connect_args, "application_name": "test"}
    with psycopg.connect(**arguments, autocommit=True) as connection:
        return connection.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'airflow-horsies'
               AND (query ILIKE 'listen%%' OR NOT %s)""",
            (only_listening,),
        ).rowcount


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.02)


async def until_listening(hook: HorsiesHook) -> None:
    async def listens() -> bool:
        return (await asyncio.to_thread(backends, hook))[0] == 1

    await until(listens)


def without_polling(hook: HorsiesHook) -> Hub:
    """The hub of the running loop, which now has to live by notifications and reconnects alone."""
    hub = hub_of(hook.settings.database, listens=hook.settings.listens)
    hub._poll_seconds = 3_600
    return hub


async def all_ended(waiter: Waiter) -> dict[str, TaskState | None]:
    while waiter.pending:
        await waiter.news()
    return waiter.ended


def test_thousand_waiters_share_one_listening_connection(hook: HorsiesHook, make_hook: MakeHook) -> None:
    ids = hook.enqueue_tasks([LATER] * 1_000)

    async def check() -> None:
        async with AsyncExitStack() as opened:
            waiters = [await opened.enter_async_context(make_hook().subscribe([task_id])) for task_id in ids]
            without_polling(hook)
            await until_listening(hook)
            listening, connected = await asyncio.to_thread(backends, hook)
            # One listens, one is the test's own, and one may be reading.
            assert listening == 1
            assert connected <= 3
            begun = time.monotonic()
            await asyncio.to_thread(hook.cancel_tasks, ids)
            cancelled = time.monotonic()
            ended = await asyncio.gather(*(all_ended(waiter) for waiter in waiters))
            print(f"1,000 cancelled in {cancelled - begun:.2f} s, all awake {time.monotonic() - cancelled:.2f} s later")
            assert ended == [{task_id: TaskState.CANCELLED} for task_id in ids]
            assert (await asyncio.to_thread(backends, hook))[0] == 1

    run(check())


def test_end_of_a_task_wakes_only_those_that_wait_for_it(hook: HorsiesHook) -> None:
    mine, others, nobodys = hook.enqueue_tasks([LATER] * 3)

    async def check() -> None:
        async with (
            hook.subscribe([mine]) as waiter,
            hook.subscribe([mine, others]) as both,
            hook.subscribe([others]) as other,
        ):
            without_polling(hook)
            await until_listening(hook)
            await asyncio.to_thread(hook.cancel_task, nobodys)
            await asyncio.to_thread(hook.cancel_task, mine)
            assert await all_ended(waiter) == {mine: TaskState.CANCELLED}
            await both.news()
            assert (both.ended, both.pending) == ({mine: TaskState.CANCELLED}, {others})
            assert (other.ended, other.pending) == ({}, {others})

    run(check())


@pytest.mark.parametrize("only_listening", [True, False], ids=["listener", "all"])
def test_cut_connections_lose_nothing(
    hook: HorsiesHook, caplog: pytest.LogCaptureFixture, only_listening: bool
) -> None:
    ids = hook.enqueue_tasks([LATER] * 50)

    async def check() -> None:
        async with AsyncExitStack() as opened:
            waiters = [await opened.enter_async_context(hook.subscribe([task_id])) for task_id in ids]
            without_polling(hook)
            for part in (ids[:25], ids[25:]):
                await until_listening(hook)
                assert await asyncio.to_thread(terminate_backends, hook, only_listening=only_listening)
                await asyncio.to_thread(hook.cancel_tasks, part)
            ended = await asyncio.gather(*(all_ended(waiter) for waiter in waiters))
            assert ended == [{task_id: TaskState.CANCELLED} for task_id in ids]

    run(check())
    assert "Trying again in 0." in caplog.text


@on_one_release
def test_restart_of_postgres_loses_nothing(
    hook: HorsiesHook, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    ids = hook.enqueue_tasks([LATER] * 50)

    async def check() -> None:
        async with AsyncExitStack() as opened:
            waiters = [await opened.enter_async_context(hook.subscribe([task_id])) for task_id in ids]
            without_polling(hook)
            await until_listening(hook)
            await asyncio.to_thread(postgres.restart)
            await asyncio.to_thread(hook.cancel_tasks, ids)
            ended = await asyncio.gather(*(all_ended(waiter) for waiter in waiters))
            assert ended == [{task_id: TaskState.CANCELLED} for task_id in ids]

    run(check())


def test_cancelled_waiter_never_cancels_the_hub(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(LATER)

    async def wait() -> dict[str, TaskState | None]:
        async with hook.subscribe([task_id]) as waiter:
            return await all_ended(waiter)

    async def check() -> None:
        # The first one started the hub.
        doomed = asyncio.create_task(wait())
        await asyncio.sleep(0)
        others = [asyncio.create_task(wait()) for _ in range(3)]
        hub = without_polling(hook)
        await until_listening(hook)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        assert hub._task is not None and not hub._task.done()
        await asyncio.to_thread(hook.cancel_task, task_id)
        assert await asyncio.gather(*others) == [{task_id: TaskState.CANCELLED}] * 3

    run(check())


@on_one_release
def test_hub_ends_when_nobody_waits_and_begins_again(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LINGER_SECONDS", 0.1)
    first, second = hook.enqueue_tasks([LATER] * 2)
    hook.close()

    async def check() -> None:
        async def nothing_is_open() -> bool:
            return await asyncio.to_thread(backends, hook) == (0, 0)

        for task_id in (first, second):
            async with hook.subscribe([task_id]) as waiter:
                hub = without_polling(hook)
                await until_listening(hook)
                await asyncio.to_thread(hook.cancel_task, task_id)
                assert await all_ended(waiter) == {task_id: TaskState.CANCELLED}
            hook.close()
            await until(nothing_is_open)
            assert hub._task is not None
            await hub._task

    run(check())


def test_database_without_horsies_is_told_to_every_waiter(
    make_hook: MakeHook, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LASTING_SECONDS", 0.5)
    hook = make_hook(empty_database)
    task_id = "01a1e223-68a7-7210-ad76-a42348fdcb7c"

    async def check() -> None:
        async with hook.subscribe([task_id]) as one, hook.subscribe([task_id]) as two:
            for waiter in (one, two):
                with pytest.raises(SchemaMissing):
                    await waiter.news()

    run(check())


def test_polling_hub_does_not_listen_and_misses_nothing(hook: HorsiesHook, make_hook: MakeHook) -> None:
    polling = make_hook(extra={"listen": "poll"})
    ids = hook.enqueue_tasks([LATER] * 50)

    async def check() -> None:
        hub_of(polling.settings.database, listens=False)._poll_seconds = 0.1
        async with AsyncExitStack() as opened:
            waiters = [await opened.enter_async_context(polling.subscribe([task_id])) for task_id in ids]
            await asyncio.sleep(0.3)
            assert (await asyncio.to_thread(backends, hook))[0] == 0
            await asyncio.to_thread(hook.cancel_tasks, ids)
            ended = await asyncio.gather(*(all_ended(waiter) for waiter in waiters))
            assert ended == [{task_id: TaskState.CANCELLED} for task_id in ids]

    run(check())


def test_id_that_is_none_is_refused_and_the_others_are_served_on(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(LATER)

    async def check() -> None:
        async with hook.subscribe([task_id.upper()]) as waiter:
            await until_listening(hook)
            with pytest.raises(InvalidTask, match="must be a UUID, not 'nonsense'"):
                async with hook.subscribe(["nonsense"]):
                    pass
            await asyncio.to_thread(hook.cancel_task, task_id)
            assert await all_ended(waiter) == {task_id: TaskState.CANCELLED}

    run(check())
