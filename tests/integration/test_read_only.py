"""A database that takes no writes for some seconds, as after a failover or with a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from airflow_horsies.client import pool
from airflow_horsies.db import session
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import DatabaseBusy
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from tests.integration.asynchronous import ask

SPEC = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2})
SetReadOnly = Callable[[bool], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (session, pool):
        monkeypatch.setattr(module, "RERUN_PAUSES_SECONDS", (0.01, 0.01))


@pytest.fixture
def set_read_only(postgres: EmbeddedPostgres, database: str) -> SetReadOnly:
    """For connections that are made from now on; one that is there stays as it is, as if it led to the old server."""

    def set_read_only(on: bool) -> None:
        with psycopg.connect(**postgres.conninfo("postgres"), autocommit=True) as connection:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(
                    sql.Identifier(database), sql.Literal(on)
                )
            )

    return set_read_only


def test_what_cannot_be_written_now_can_be_written_later(hook: HorsiesHook, set_read_only: SetReadOnly) -> None:
    set_read_only(True)
    with pytest.raises(DatabaseBusy, match="read-only"):
        hook.enqueue_task(SPEC)
    set_read_only(False)
    assert hook.read_task(hook.enqueue_task(SPEC)).state is TaskState.PENDING


def test_a_new_connection_is_made_at_once_as_it_may_lead_to_another_server(
    hook: HorsiesHook, set_read_only: SetReadOnly
) -> None:
    set_read_only(True)
    hook.read_workers()
    set_read_only(False)
    assert hook.read_task(hook.enqueue_task(SPEC)).state is TaskState.PENDING


def test_what_is_asked_of_the_event_loop_is_asked_over_a_new_connection(
    hook: HorsiesHook, set_read_only: SetReadOnly
) -> None:
    task_id = hook.enqueue_task(SPEC)

    async def cancel() -> None:
        set_read_only(True)
        with pytest.raises(DatabaseBusy, match="read-only"):
            await hook.cancel_task_async(task_id)
        await ask(hook, "read_workers")
        set_read_only(False)
        await hook.cancel_task_async(task_id)

    asyncio.run(cancel())
    assert hook.read_task(task_id).state is TaskState.CANCELLED
