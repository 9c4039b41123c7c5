"""The hub and the triggers on a database that is busy, locked, full, silent or being upgraded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from airflow_horsies.client import hub as hub_module
from airflow_horsies.client import pool as pool_module
from airflow_horsies.client import watched as watched_module
from airflow_horsies.client.async_client import MAX_TASKS_ON_LOOP
from airflow_horsies.client.client import Client
from airflow_horsies.client.hub import Waiter, hub_of
from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.client.pool import pool_of
from airflow_horsies.client.threads import THREADS
from airflow_horsies.db.limits import Limits
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import CutoverPending, DatabaseBusy, SchemaMissing, WireError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskState, TaskView
from airflow_horsies.triggers import (
    HorsiesBatchTrigger,
    HorsiesQueueTrigger,
    HorsiesSubmissionTrigger,
    HorsiesTrigger,
)
from airflow_horsies.wire import known as known_module
from airflow_horsies.wire.schema import Generation
from tests.chaos.proxy import Proxy
from tests.integration.asynchronous import ask
from tests.integration.conftest import MakeHook
from tests.integration.pgbouncer import pgbouncer
from tests.integration.releases import IN_PLACE, MOVED
from tests.integration.test_hub import (
    LATER,
    all_ended,
    backends,
    run,
    until,
    until_listening,
    without_polling,
)

CONN_ID = "horsies_stored"
QUICK = Limits(lock_seconds=0.3, statement_seconds=1.0, answer_seconds=1.5)

on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


def outside(hook: HorsiesHook) -> psycopg.Connection[Any]:
    """A connection that is not of this package."""
    return psycopg.connect(**{**hook.settings.database.connect_args, "application_name": "test", "options": ""})


@asynccontextmanager
async def locked(hook: HorsiesHook) -> AsyncIterator[None]:
    with outside(hook) as connection:
        # From a thread: a transaction that this event loop has open must come to its end.
        await asyncio.to_thread(connection.execute, "LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()


def change(hook: HorsiesHook, statement: LiteralString, *params: Any) -> None:
    with outside(hook) as connection:
        connection.execute(statement, params)


@asynccontextmanager
async def waiting_for(hook: HorsiesHook, ids: list[str]) -> AsyncIterator[list[Waiter]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(hook.subscribe([task_id])) for task_id in ids]


async def ends_of(waiters: list[Waiter]) -> list[dict[str, TaskState | None]]:
    return list(await asyncio.gather(*(all_ended(waiter) for waiter in waiters)))


def cancelled(ids: list[str]) -> list[dict[str, TaskState | None]]:
    return [{task_id: TaskState.CANCELLED} for task_id in ids]


async def until_logged(caplog: pytest.LogCaptureFixture, text: str, times: int = 1) -> None:
    async def was_logged() -> bool:
        return sum(text in message for message in caplog.messages) >= times

    await until(was_logged)


# -- refusals that pass ------------------------------------------------------------------------------------------------


@on_one_release
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("lock_timeout=200", "lock timeout"),
        ("statement_timeout=200", "statement timeout"),
        (None, "canceling statement due to user request"),
    ],
    ids=["the role's lock_timeout", "the role's statement_timeout", "pg_cancel_backend"],
)
def test_refusal_that_passes_fails_no_waiter(
    make_hook: MakeHook, hook: HorsiesHook, caplog: pytest.LogCaptureFixture, setting: str | None, says: str
) -> None:
    ids = hook.enqueue_tasks([LATER] * 50)
    limited = make_hook(extra={"options": f"-c {setting}"} if setting else None)

    async def check() -> None:
        async with waiting_for(limited, ids) as waiters:
            without_polling(limited)
            async with locked(hook):
                for _ in range(2):
                    if setting is None:
                        await until(lambda: asyncio.to_thread(cancel_statements, hook))
                    await until_logged(caplog, says)
                    caplog.clear()
            await asyncio.to_thread(hook.cancel_tasks, ids)
            assert await ends_of(waiters) == cancelled(ids)

    run(check())


def cancel_statements(hook: HorsiesHook) -> bool:
    with outside(hook) as connection:
        found = connection.execute(
            """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'"""
        )
        return found.rowcount > 0


@on_one_release
def test_thousands_wait_through_a_lock_and_are_served_after_it(
    hook: HorsiesHook, caplog: pytest.LogCaptureFixture
) -> None:
    """The limits are ours: nobody has set one."""
    ids = hook.enqueue_tasks([LATER] * 300)

    async def check() -> None:
        async with waiting_for(hook, ids * 10) as waiters:
            hub = without_polling(hook)
            hub._limits = QUICK
            await until_listening(hook)
            async with locked(hook):
                hub._read_again(ids)
                await until_logged(caplog, "lock timeout", times=3)
                assert len(hub._unread) == len(ids)
                assert (await asyncio.to_thread(backends, hook))[1] <= 3
            await asyncio.to_thread(hook.cancel_tasks, ids)
            assert await ends_of(waiters) == cancelled(ids * 10)

    run(check())


@on_one_release
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_waiting_without_an_event_loop_outlives_a_lock(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    if driver == "psycopg2":
        monkeypatch.setattr("airflow.providers.postgres.hooks.postgres.USE_PSYCOPG3", False)
    task_id = hook.enqueue_task(LATER)
    limited = make_hook(extra={"options": "-c lock_timeout=200"})

    async def check() -> None:
        async with locked(hook):
            with pytest.raises(DatabaseBusy, match="Cannot run a statement"):
                await asyncio.to_thread(limited.read_task, task_id)
            waiting = asyncio.create_task(asyncio.to_thread(limited.wait, [task_id], timeout_seconds=60))
            await asyncio.sleep(1)
            assert not waiting.done()
        await asyncio.to_thread(hook.cancel_task, task_id)
        (task,) = await waiting
        assert task.state is TaskState.CANCELLED

    run(check())


# -- silence -----------------------------------------------------------------------------------------------------------


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def backends_of(hook: HorsiesHook) -> list[int]:
    """The server's processes for the connections of this package."""
    with outside(hook) as connection:
        rows = connection.execute(
            """SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'airflow-horsies'"""
        ).fetchall()
    return [row[0] for row in rows]


@on_one_release
def test_backend_that_does_not_answer_is_replaced(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LISTEN_CHECK_SECONDS", 0.3)
    ids = hook.enqueue_tasks([LATER] * 20)
    hook.close()

    async def check() -> None:
        waiting = make_hook()
        async with waiting_for(waiting, ids) as waiters:
            without_polling(waiting)._limits = QUICK
            await until_listening(hook)
            # The listener's and the reader's.
            with stopped(await asyncio.to_thread(backends_of, hook)):
                await asyncio.to_thread(hook.cancel_tasks, ids)
                assert await ends_of(waiters) == cancelled(ids)

    run(check())


@on_one_release
def test_half_open_connection_is_replaced(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LISTEN_CHECK_SECONDS", 0.3)
    ids = hook.enqueue_tasks([LATER] * 20)
    proxy = Proxy()
    try:
        route = proxy.add("hub", postgres.port)

        async def check() -> None:
            far = make_hook(port=route.port)
            async with waiting_for(far, ids) as waiters:
                without_polling(far)._limits = QUICK
                pool_of(far.settings.database)._limits = QUICK
                await far.read_task_async(ids[0])
                await until_listening(hook)
                assert await asyncio.to_thread(proxy.freeze, "hub") == 3
                await asyncio.to_thread(hook.cancel_tasks, ids)
                assert await ends_of(waiters) == cancelled(ids)
                # What is asked beside the hub had a connection, too.
                assert (await far.read_task_async(ids[0])).state is TaskState.CANCELLED

        run(check())
    finally:
        proxy.close()


@on_one_release
def test_trigger_that_is_cancelled_while_it_reads_leaves_no_connection_behind(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.1)
    task_id = hook.enqueue_task(LATER)
    asking = make_hook()
    hook.close()

    async def check() -> None:
        async with locked(hook):
            reads = [asyncio.create_task(asking.read_task_async(task_id)) for _ in range(10)]
            await until_connected(hook, pool_module.MAX_CONNECTIONS)
            for read in reads:
                read.cancel()
            assert {type(each) for each in await asyncio.gather(*reads, return_exceptions=True)} == {
                asyncio.CancelledError
            }
        assert (await asking.read_task_async(task_id)).state is TaskState.PENDING
        await until_connected(hook, 0)

    run(check())


@asynccontextmanager
async def silent_threads(hook: HorsiesHook) -> AsyncIterator[list[asyncio.Task[dict[str, TaskView]]]]:
    """As many large reads as there are threads, all on backends that do not answer."""
    ids, go = hook.enqueue_tasks([LATER] * 3), threading.Event()
    hook.close()
    client = await hook.async_client()

    def read(client: Client) -> dict[str, TaskView]:
        client.read_states(ids[:1])
        go.wait(30)
        return client.read_tasks(ids)

    reads = [asyncio.create_task(client.in_thread(read)) for _ in range(THREADS)]
    pids: list[int] = []
    async with asyncio.timeout(20):
        while len(pids) < THREADS:
            pids = await asyncio.to_thread(backends_of, hook)
    with stopped(pids):
        go.set()
        yield reads


@on_one_release
def test_thread_whose_backend_does_not_answer_reads_on_another(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_module, "LIMITS", QUICK)

    async def check() -> None:
        async with silent_threads(hook) as reads:
            assert [len(found) for found in await asyncio.gather(*reads)] == [3] * THREADS

    run(check())


@on_one_release
def test_thread_does_not_wait_long_for_a_lock(
    hook: HorsiesHook, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_module, "LIMITS", QUICK)
    ids = hook.enqueue_tasks([LATER] * 3)

    async def check() -> None:
        client = await make_hook().async_client()
        async with locked(hook):
            with pytest.raises(DatabaseBusy, match="Cannot run a statement"):
                await client.in_thread(lambda client: client.read_tasks(ids))
        assert len(await client.in_thread(lambda client: client.read_tasks(ids))) == 3

    run(check())


@on_one_release
def test_large_batches_do_not_wait_for_another_database_that_is_silent(
    hook: HorsiesHook, make_hook: MakeHook, postgres: EmbeddedPostgres, template: str
) -> None:
    name = f"other_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name, template=template)
    other = make_hook(name)
    ids = other.enqueue_tasks([LATER] * (MAX_TASKS_ON_LOOP + 1))

    async def check() -> None:
        async with silent_threads(hook) as reads:
            async with asyncio.timeout(20):
                assert len(await (await other.async_client()).read_tasks(ids)) == len(ids)
            assert not any(read.done() for read in reads)
        await asyncio.gather(*reads)

    try:
        run(check())
    finally:
        other.close()
        postgres.drop_database(name)


async def until_connected(hook: HorsiesHook, connections: int) -> None:
    async def are_connected() -> bool:
        return (await asyncio.to_thread(backends, hook))[1] == connections

    await until(are_connected)


# -- many triggers -----------------------------------------------------------------------------------------------------


def limited_role(postgres: EmbeddedPostgres, database: str, connections: int) -> str:
    """A login of its own that may have so many connections."""
    role = f"{database}_few"
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        name = sql.Identifier(role)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'few' CONNECTION LIMIT {}").format(name, connections))
        for schema in (sql.Identifier("public"), sql.Identifier("airflow_horsies")):
            connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, name))
            connection.execute(
                sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}").format(schema, name)
            )
            connection.execute(sql.SQL("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {} TO {}").format(schema, name))
    return role


def drop_role(postgres: EmbeddedPostgres, database: str, role: str) -> None:
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (role,)
        ).fetchall()
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def store_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str, **fields: Any) -> None:
    info = postgres.conninfo(database)
    stored = {
        "conn_type": "horsies",
        "host": info["host"],
        "port": int(info["port"]),
        "login": info["user"],
        "password": info["password"],
        "schema": database,
        **fields,
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(stored))


async def event_of(trigger: HorsiesTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise AssertionError("it never fired")


async def highest_of(count: Callable[[], int]) -> int:
    """The most that was ever counted until this is cancelled."""
    most = 0
    try:
        while True:
            most = max(most, await asyncio.to_thread(count))
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return most


@on_one_release
def test_three_hundred_triggers_take_a_handful_of_connections(
    hook: HorsiesHook,
    postgres: EmbeddedPostgres,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = [{"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": number} for number in range(30)]
    sent = [hook.submit_tasks([LATER], TaskInstanceKey(**key), AirflowTry(try_number=1))[0].task_id for key in keys]
    keys *= 10
    role = limited_role(postgres, database, connections=6)
    store_connection(monkeypatch, postgres, database, login=role, password="few")
    common: dict[str, Any] = {"horsies_conn_id": CONN_ID}
    triggers: list[HorsiesTrigger] = [
        *(HorsiesBatchTrigger(task_instance=key, life=1, **common) for key in keys),
        *(HorsiesSubmissionTrigger(task_instance=key, failed_states=["CANCELLED"], **common) for key in keys[:50]),
        *(HorsiesQueueTrigger(queue="default", min_workers=0, **common) for _ in range(50)),
    ]
    watching = psycopg.connect(**postgres.conninfo(database), autocommit=True)

    def connections() -> int:
        row = watching.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", (role,)).fetchone()
        assert row is not None
        return int(row[0])

    async def check() -> None:
        counting = asyncio.create_task(highest_of(connections))
        fired = [asyncio.create_task(event_of(trigger)) for trigger in triggers]
        await asyncio.gather(*fired[350:])
        await asyncio.to_thread(hook.cancel_tasks, sent[:15])
        # The others are given up, all at once.
        given_up = [(trigger, key) for trigger, key in zip(triggers, keys, strict=False) if key["map_index"] >= 15]
        await asyncio.gather(*(trigger._release(TaskInstanceKey(**key)) for trigger, key in given_up))
        events = await asyncio.gather(*fired)
        assert {event["reason"] for event in events[:300]} == {"ended"}
        counting.cancel()
        peak = await counting
        print(f"{len(triggers)} triggers, at most {peak} connections")
        assert 2 <= peak <= 5

    try:
        run(check())
        assert set(hook.read_states(sent).values()) == {TaskState.CANCELLED}
        assert "Trying again" not in caplog.text
    finally:
        watching.close()
        drop_role(postgres, database, role)


@on_one_release
def test_triggers_that_find_no_connection_left_come_back_later(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    sent = hook.submit_tasks([LATER], TaskInstanceKey(**key), AirflowTry(try_number=1))
    role = limited_role(postgres, database, connections=3)
    store_connection(monkeypatch, postgres, database, login=role, password="few")
    info = {**postgres.conninfo(database), "user": role, "password": "few"}

    async def check() -> None:
        taken = [psycopg.connect(**info) for _ in range(3)]
        fired = [
            asyncio.create_task(event_of(HorsiesBatchTrigger(task_instance=key, life=1, horsies_conn_id=CONN_ID)))
            for _ in range(20)
        ]
        await asyncio.sleep(0.5)
        for connection in taken:
            connection.close()
        await asyncio.to_thread(hook.cancel_task, sent[0].task_id)
        assert {event["reason"] for event in await asyncio.gather(*fired)} == {"ended"}

    try:
        run(check())
    finally:
        drop_role(postgres, database, role)


# -- poolers -----------------------------------------------------------------------------------------------------------


@on_one_release
def test_nothing_is_prepared_on_any_connection_of_ours(
    hook: HorsiesHook, postgres: EmbeddedPostgres, tmp_path: Path, make_hook: MakeHook
) -> None:
    """A statement that the driver prepared on one backend is unknown to the next one a pooler lends."""
    task_id = hook.enqueue_task(LATER)

    def prepared(connection: Any) -> int:
        for _ in range(10):
            connection.execute("SELECT 1 FROM horsies_tasks WHERE id = %s", (task_id,))
        row = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        return int(row[0])

    with hook.get_conn() as connection:
        assert prepared(connection) == 0
        assert connection.prepare_threshold is None

    async def through_pooler(port: int) -> None:
        pooled = make_hook(port=port, extra={"listen_port": str(postgres.port)})
        for _ in range(10):
            read = await asyncio.gather(*(pooled.read_task_async(task_id) for _ in range(10)))
            assert {task.id for task in read} == {task_id}
        async with waiting_for(pooled, [task_id] * 10) as waiters:
            await asyncio.to_thread(pooled.cancel_task, task_id)
            await ends_of(waiters)

    with pgbouncer(postgres, tmp_path) as port:
        run(through_pooler(port))


# -- upgrades ----------------------------------------------------------------------------------------------------------


@on_one_release
def test_waiters_outlive_the_cutover_that_moves_the_tasks(hook: HorsiesHook) -> None:
    """What was found before the cutover no longer fits: uuids beside texts, and finished tasks in another table."""
    going_on, ended = hook.enqueue_tasks([LATER] * 2)
    hook.cancel_task(ended)
    outdated = replace(hook.client.schema, generation=Generation.IN_PLACE)

    def remember_it(known: Any) -> None:
        known._schema, known._found_at = outdated, known_module.time.monotonic()

    async def check() -> None:
        hub = without_polling(hook)
        remember_it(hub._known)
        remember_it(pool_of(hook.settings.database)._known)
        async with waiting_for(hook, [going_on, ended]) as waiters:
            assert await all_ended(waiters[1]) == {ended: TaskState.CANCELLED}
            assert (await hook.read_task_async(ended)).state is TaskState.CANCELLED
            remember_it(hook.client._known)
            assert await asyncio.to_thread(hook.cancel_tasks, [going_on])
            assert await all_ended(waiters[0]) == {going_on: TaskState.CANCELLED}

    run(check())
    remember_it(hook.client._known)
    assert hook.read_task(ended).state is TaskState.CANCELLED
    remember_it(hook.client._known)
    assert hook.enqueue_task(LATER)


@pytest.mark.parametrize("release", [IN_PLACE], indirect=True)
def test_open_hooks_wait_on_and_send_nothing_while_a_cutover_is_pending(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, absent = hook.enqueue_tasks([LATER] * 2)
    assert not hook.client.schema.cutover_is_pending
    monkeypatch.setattr(known_module, "DETECT_AGAIN_SECONDS", 0.0)
    script = Path(__file__).with_name("upstream_init.py")
    url = postgres.dsn(database, scheme="postgresql+psycopg")

    async def check() -> None:
        async with waiting_for(hook, [going_on, absent]) as waiters:
            hub = without_polling(hook)
            await until_listening(hook)
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, script],
                env={**os.environ, "HORSIES_DATABASE_URL": url},
                check=True,
                capture_output=True,
            )
            for write in (lambda: hook.enqueue_task(LATER), lambda: hook.cancel_task(going_on)):
                with pytest.raises(CutoverPending, match="Nothing is sent or cancelled until the cutover is complete"):
                    await asyncio.to_thread(write)
            with outside(hook) as connection:
                # An older worker goes on, and the cutover has begun to move tasks away.
                connection.execute(
                    "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now() WHERE id = %s", (going_on,)
                )
                connection.execute("DELETE FROM horsies_tasks WHERE id = %s", (absent,))
            hub._read_again([going_on, absent])
            assert await all_ended(waiters[0]) == {going_on: TaskState.CANCELLED}
            assert waiters[1].pending == {absent}

    run(check())


@on_one_release
def test_tables_that_are_away_for_a_moment_fail_nobody(hook: HorsiesHook, caplog: pytest.LogCaptureFixture) -> None:
    """As while a backup is restored."""
    task_id = hook.enqueue_task(LATER)

    async def check() -> None:
        async with waiting_for(hook, [task_id]) as waiters:
            hub = without_polling(hook)
            await until_listening(hook)
            await asyncio.to_thread(change, hook, "ALTER TABLE horsies_tasks RENAME TO elsewhere")
            hub._read_again([task_id])
            await until_logged(caplog, "no table horsies_tasks")
            await asyncio.to_thread(change, hook, "ALTER TABLE elsewhere RENAME TO horsies_tasks")
            await asyncio.to_thread(hook.cancel_task, task_id)
            assert await ends_of(waiters) == cancelled([task_id])

    run(check())


@pytest.mark.parametrize("release", [IN_PLACE], indirect=True)
def test_state_that_is_not_known_fails_only_those_who_wait_for_that_task(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LASTING_SECONDS", 0.5)
    odd, plain = ids = hook.enqueue_tasks([LATER] * 2)

    async def check() -> None:
        hub_of(hook.settings.database, listens=True)._poll_seconds = 0.2
        async with waiting_for(hook, ids) as (of_odd, of_plain):
            await until_listening(hook)
            await asyncio.to_thread(change, hook, "UPDATE horsies_tasks SET status = 'PONDERED' WHERE id = %s", odd)
            with pytest.raises(WireError, match=f"Task {odd} has the status 'PONDERED'"):
                await all_ended(of_odd)
            await asyncio.to_thread(hook.cancel_task, plain)
            assert await all_ended(of_plain) == {plain: TaskState.CANCELLED}

    run(check())


@on_one_release
def test_trigger_goes_on_with_the_password_that_was_changed(
    postgres: EmbeddedPostgres, database: str, hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LASTING_SECONDS", 0.5)
    migrate_ledger(hook.client)
    role = limited_role(postgres, database, 20)
    store_connection(monkeypatch, postgres, database, login=role, password="few")
    task_id = hook.enqueue_task(LATER)

    async def check() -> None:
        waiting = asyncio.create_task(event_of(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID)))
        await until_listening(hook)
        with outside(hook) as connection:
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD 'fewer'").format(sql.Identifier(role)))
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))
        await asyncio.sleep(1)
        assert not waiting.done()
        store_connection(monkeypatch, postgres, database, login=role, password="fewer")
        await asyncio.to_thread(hook.cancel_task, task_id)
        assert (await waiting)["reason"] == "ended"

    try:
        run(check())
    finally:
        drop_role(postgres, database, role)


def test_submission_to_a_database_without_horsies_creates_nothing_there(
    make_hook: MakeHook, empty_database: str
) -> None:
    hook = make_hook(empty_database)
    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=-1)
    task_id = "01a1e223-68a7-7210-ad76-a42348fdcb7c"
    uses: list[Callable[[], object]] = [
        lambda: hook.submit_task(LATER, instance, AirflowTry(try_number=1)),
        lambda: hook.submit_tasks([LATER], instance, AirflowTry(try_number=1)),
        lambda: hook.cancel_task(task_id),
        lambda: prune_ledger(hook.client),
        lambda: migrate_ledger(hook.client),
        lambda: run(ask(hook, "cancel_tasks", [task_id])),
    ]
    for use in uses:
        with pytest.raises(SchemaMissing, match="no table horsies_tasks"):
            use()
    with hook.get_conn() as connection:
        assert connection.execute("SELECT to_regnamespace('airflow_horsies')").fetchone() == (None,)
