"""Waiting: woken by a notification, and never fooled by a lost one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.hub import hub_of
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import ListenUnavailable, TaskNotFound, WaitTimeout
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState, TaskView
from tests.integration.conftest import MakeHook
from tests.integration.pgbouncer import pgbouncer
from tests.integration.releases import MOVED

LATER = TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=1))
NEVER_POLL = 3_600.0

Wait = Callable[..., list[TaskView]]


def wait_sync(hook: HorsiesHook, ids: list[str], **options: Any) -> list[TaskView]:
    return hook.wait(ids, **options)


def wait_async(
    hook: HorsiesHook, ids: list[str], *, poll_seconds: float = NEVER_POLL, **options: Any
) -> list[TaskView]:
    async def wait_on_a_hub_that_polls_so_often() -> list[TaskView]:
        hub = hub_of(hook.settings.database, listens=hook.settings.listens)
        hub._poll_seconds = poll_seconds
        return await hook.wait_async(ids, **options)

    return asyncio.run(wait_on_a_hub_that_polls_so_often())


both_sides = pytest.mark.parametrize("wait", [wait_sync, wait_async], ids=["sync", "async"])


def until_listening(hook: HorsiesHook, listeners: int = 1) -> None:
    """Returns once so many connections to the test's database have said LISTEN and are idle."""
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND query ILIKE 'listen%%' AND state = 'idle'"""
    give_up = time.monotonic() + 120
    with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
        while connection.execute(query).fetchone() != (listeners,):
            assert time.monotonic() < give_up
            time.sleep(0.02)


@both_sides
def test_notification_wakes_the_waiter_without_polling(hook: HorsiesHook, make_hook: MakeHook, wait: Wait) -> None:
    ids = hook.enqueue_tasks([LATER, LATER])
    waiter = make_hook()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, waiter, ids, timeout_seconds=60, poll_seconds=NEVER_POLL)
        until_listening(hook)
        for task_id in ids:
            hook.cancel_task(task_id)
        tasks = waiting.result(60)
    assert [(task.id, task.state) for task in tasks] == [(task_id, TaskState.CANCELLED) for task_id in ids]


def test_notification_wakes_a_waiter_on_the_older_driver(
    with_psycopg2: None, hook: HorsiesHook, make_hook: MakeHook
) -> None:
    task_id = hook.enqueue_task(LATER)
    assert not hook.settings.database.use_psycopg
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(make_hook().wait, [task_id], timeout_seconds=60, poll_seconds=NEVER_POLL)
        until_listening(hook)
        hook.cancel_task(task_id)
        assert waiting.result(60)[0].state is TaskState.CANCELLED


@both_sides
def test_task_that_ended_before_is_returned_at_once(hook: HorsiesHook, wait: Wait) -> None:
    task_id = hook.enqueue_task(LATER)
    hook.cancel_task(task_id)
    (task,) = wait(hook, [task_id], timeout_seconds=60, poll_seconds=NEVER_POLL)
    assert task.state is TaskState.CANCELLED


@both_sides
def test_poll_covers_a_lost_notification(hook: HorsiesHook, make_hook: MakeHook, wait: Wait) -> None:
    task_id = hook.enqueue_task(LATER)
    waiter = make_hook(extra={"listen": "poll"})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, waiter, [task_id], timeout_seconds=60, poll_seconds=0.2)
        time.sleep(0.5)
        hook.cancel_task(task_id)
        assert waiting.result(60)[0].state is TaskState.CANCELLED


@both_sides
def test_cut_connection_is_opened_again_and_nothing_is_missed(
    hook: HorsiesHook, make_hook: MakeHook, wait: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = hook.enqueue_task(LATER)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, make_hook(), [task_id], timeout_seconds=60, poll_seconds=NEVER_POLL)
        until_listening(hook)
        with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
            connection.execute(
                """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()"""
            )
        hook.cancel_task(task_id)  # its own connection was cut too
        assert waiting.result(60)[0].state is TaskState.CANCELLED


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@both_sides
def test_waiter_outlives_a_restart_of_postgres(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, wait: Wait
) -> None:
    task_id = hook.enqueue_task(LATER)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, make_hook(), [task_id], timeout_seconds=60, poll_seconds=NEVER_POLL)
        until_listening(hook)
        postgres.restart()
        hook.cancel_task(task_id)
        assert waiting.result(60)[0].state is TaskState.CANCELLED


@both_sides
def test_timeout_names_the_task_and_leaves_it_alone(hook: HorsiesHook, wait: Wait) -> None:
    task_id = hook.enqueue_task(LATER)
    with pytest.raises(WaitTimeout, match=task_id) as caught:
        wait(hook, [task_id], timeout_seconds=0.3)
    assert caught.value.task_id == task_id
    assert hook.read_task(task_id).state is TaskState.PENDING


@both_sides
def test_task_that_never_existed_is_an_error_that_says_so(hook: HorsiesHook, wait: Wait) -> None:
    with pytest.raises(TaskNotFound, match=r"never existed.*past its retention"):
        wait(hook, ["01a1e223-68a7-7210-ad76-a42348fdcb7c"], timeout_seconds=5)


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@both_sides
def test_pooler_in_transaction_mode_is_refused_with_the_way_out(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, tmp_path: Path, wait: Wait
) -> None:
    task_id = hook.enqueue_task(LATER)
    with pgbouncer(postgres, tmp_path, pool_mode="transaction") as port:
        pooled = make_hook(port=port)
        assert pooled.read_task(task_id).state is TaskState.PENDING
        with pytest.raises(ListenUnavailable, match=r"transaction mode.*listen_host.*poll"):
            wait(pooled, [task_id], timeout_seconds=5)
        hook.cancel_task(task_id)
        past = make_hook(port=port, extra={"listen_host": postgres.host, "listen_port": postgres.port})
        assert wait(past, [task_id], timeout_seconds=5)[0].state is TaskState.CANCELLED
        polling = make_hook(port=port, extra={"listen": "poll"})
        assert wait(polling, [task_id], timeout_seconds=5)[0].state is TaskState.CANCELLED
        for each in (pooled, past, polling):
            each.close()


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@both_sides
def test_pooler_in_session_mode_is_listened_through(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, tmp_path: Path, wait: Wait
) -> None:
    task_id = hook.enqueue_task(LATER)
    with pgbouncer(postgres, tmp_path, pool_mode="session") as port:
        pooled = make_hook(port=port)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait, pooled, [task_id], timeout_seconds=60, poll_seconds=NEVER_POLL)
            until_listening(hook)
            hook.cancel_task(task_id)
            assert waiting.result(60)[0].state is TaskState.CANCELLED
        pooled.close()
