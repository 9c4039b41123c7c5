"""What workers write reaches the log of the Airflow task that waits: each line once, whoever waits, whatever breaks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_horsies.client import hub as hub_module
from airflow_horsies.client.ledger import migrate_ledger, read_ledger_version
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import TaskCancelled
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import LogCursor, TaskState
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.operators import base as task_operator
from airflow_horsies.triggers import HorsiesTrigger
from airflow_horsies.triggers.task_log import TaskLog
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines, write_progress
from tests.integration.test_hub import LATER, all_ended, run, terminate_backends, until, until_listening
from tests.integration.test_submit import end_task
from tests.integration.test_triggers import CONN_ID, event_of, firing, in_thread, store_connection

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

LOGGER = logging.getLogger("the task")
QUICKLY = 0.1


@pytest.fixture(autouse=True)
def stored_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> None:
    store_connection(monkeypatch, postgres, database)


@pytest.fixture(autouse=True)
def task_log_of_airflow(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What operators and triggers log is in caplog."""
    caplog.set_level(logging.INFO, LOGGER.name)
    for kind in (HorsiesOperator, HorsiesBatchOperator, HorsiesTrigger):
        monkeypatch.setattr(kind, "log", LOGGER, raising=False)
    monkeypatch.setattr(task_operator.ATTEMPTS_LINK, "push", lambda context: None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("client.hub", "client.waiting"):
        monkeypatch.setattr(f"airflow_horsies.{module}.FOLLOW_SECONDS", QUICKLY)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER.name]


def lines_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The text of the lines of tasks that were shown."""
    return [message.partition("] ")[2] for message in messages(caplog) if message.startswith(("[attempt", "[item"))]


def until_true(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement the hub runs, as it runs them."""
    ran: list[str] = []
    run_async = hub_module.run_async

    def counted(script: Any) -> Iterator[Any]:
        try:
            statement = next(script)
            while True:
                ran.append(statement.sql)
                statement = script.send((yield statement))
        except StopIteration as stop:
            return stop.value

    async def run_counted(connection: Any, make_script: Any, limits: Any) -> Any:
        return await run_async(connection, lambda: counted(make_script()), limits)

    monkeypatch.setattr(hub_module, "run_async", run_counted)
    return ran


def test_two_hundred_followed_tasks_cost_one_statement_a_tick(hook: HorsiesHook, statements: list[str]) -> None:
    migrate_ledger(hook.client)
    ids = hook.enqueue_tasks([LATER] * 200)
    seen: dict[str, dict[str, LogCursor]] = {task_id: {} for task_id in ids}

    async def check() -> None:
        async with AsyncExitStack() as opened:
            waiters = [
                await opened.enter_async_context(hook.subscribe([task_id], seen=seen[task_id])) for task_id in ids
            ]
            await until_listening(hook)
            await asyncio.sleep(0.5)
            statements.clear()
            for task_id in ids:
                await in_thread(write_lines, hook, task_id, f"of {task_id}")
            begun = time.monotonic()
            await asyncio.gather(*(waiter.news() for waiter in waiters))
            assert time.monotonic() - begun < 3
            assert {
                task_id: line.text
                for waiter in waiters
                for task_id, told in waiter.take().items()
                for line in told.lines
            } == {task_id: f"of {task_id}" for task_id in ids}
            for task_id in ids:
                seen[task_id][task_id] = LogCursor(1, 1)
            await asyncio.sleep(4)
            elapsed = time.monotonic() - begun
            looks = [sql for sql in statements if "airflow_horsies" in sql]
            assert len(set(looks)) == 1
            assert len(looks) <= elapsed / hub_module.FOLLOW_SECONDS + 2
            assert [waiter.take() for waiter in waiters] == [{}] * 200

    run(check())


def test_hub_reads_no_logs_for_those_who_only_wait(hook: HorsiesHook, statements: list[str], quick: None) -> None:
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(LATER)
    write_lines(hook, task_id, "unheard")

    async def check() -> None:
        async with hook.subscribe([task_id]) as waiter:
            await until_listening(hook)
            await asyncio.sleep(5 * QUICKLY)
            assert [sql for sql in statements if "airflow_horsies" in sql] == []
            await in_thread(hook.cancel_task, task_id)
            await all_ended(waiter)

    run(check())


def test_hub_reads_no_logs_where_there_are_none(make_hook: MakeHook, statements: list[str], quick: None) -> None:
    hook = make_hook()
    task_id = hook.enqueue_task(LATER)
    assert read_ledger_version(hook.client) == 0

    async def check() -> None:
        async with hook.subscribe([task_id], seen={}) as waiter:
            await until_listening(hook)
            await asyncio.sleep(5 * QUICKLY)
            assert [sql for sql in statements if "airflow_horsies.logs" in sql] == []
            await in_thread(hook.cancel_task, task_id)
            assert await all_ended(waiter) == {task_id: TaskState.CANCELLED}

    run(check())


def test_logs_that_cannot_be_read_do_not_end_the_waiting(
    hook: HorsiesHook, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(LATER)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("ALTER TABLE airflow_horsies.logs RENAME TO gone")

    async def check() -> None:
        async with hook.subscribe([task_id], seen={}) as waiter:
            await until_listening(hook)
            await asyncio.sleep(3 * QUICKLY)
            await in_thread(hook.cancel_task, task_id)
            assert await all_ended(waiter) == {task_id: TaskState.CANCELLED}

    run(check())
    assert "Cannot read the log lines and the progress of tasks" in caplog.text


def test_cut_connections_lose_no_line_of_those_who_follow(
    hook: HorsiesHook, quick: None, release: str, caplog: pytest.LogCaptureFixture
) -> None:
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(LATER)
    texts = [str(number) for number in range(60)]

    async def check() -> None:
        async with firing(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, seen={})) as fired:
            await until_listening(hook)
            for begin in range(0, 60, 20):
                for number in range(begin, begin + 20):
                    await in_thread(write_lines, hook, task_id, texts[number], first=number + 1)
                await in_thread(terminate_backends, hook)

                async def all_shown(count: int = begin + 20) -> bool:
                    return len(lines_in(caplog)) == count

                await until(all_shown)
            await in_thread(end_task, hook, task_id, TaskState.COMPLETED, release)
            assert (await fired)["seen"] == {task_id: [1, 60]}

    run(check())
    assert lines_in(caplog) == texts


def test_cut_connection_while_waiting_inline_loses_no_line(
    hook: HorsiesHook, make_hook: MakeHook, quick: None, release: str, caplog: pytest.LogCaptureFixture
) -> None:
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(LATER)
    waiter = make_hook()
    task_log = TaskLog(LOGGER, [task_id], {})
    with ThreadPoolExecutor(1) as pool:
        follow = partial(task_log.follow, waiter.client)
        waiting = pool.submit(waiter.wait, [task_id], timeout_seconds=60, meanwhile=follow)
        for number in range(1, 4):
            write_lines(hook, task_id, str(number), first=number)
            until_true(lambda number=number: lines_in(caplog) == [str(each) for each in range(1, number + 1)])  # type: ignore[misc]
            terminate_backends(hook)
        end_task(hook, task_id, TaskState.COMPLETED, release)
        assert waiting.result(60)[0].state is TaskState.COMPLETED
    assert lines_in(caplog) == ["1", "2", "3"]


# -- through the operator ---------------------------------------------------------------------------------------------


def context() -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="sales",
        run_id="manual__1",
        task_id="load",
        map_index=-1,
        try_number=1,
        max_tries=0,
        start_date=datetime.now(UTC),
        xcom_push=lambda **_: None,
    )
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))}


def make_operator(kind: type[Any] = HorsiesOperator, **given: Any) -> Any:
    return kind(
        **{
            "task_id": "load",
            "task_name": "add",
            "delay": timedelta(hours=1),
            "inline_wait": timedelta(seconds=1),
            "deferrable": True,
            "horsies_conn_id": CONN_ID,
            **given,
        }
    )


def sent_ids(hook: HorsiesHook, count: int = 1) -> list[str]:
    """The ids of the tasks, once the operator has sent them."""
    until_true(lambda: len(hook.list_tasks().tasks) == count)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        found = connection.execute("SELECT horsies_task_id::text FROM airflow_horsies.submissions ORDER BY position")
        return [task_id for (task_id,) in found.fetchall()]


def defer(hook: HorsiesHook, operator: Any, meanwhile: Callable[[list[str]], None], count: int = 1) -> TaskDeferred:
    """The deferral of an operator, and what happens while it waits inline."""

    def execute() -> TaskDeferred:
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context())
        return deferred.value

    with ThreadPoolExecutor(1) as pool:
        deferred = pool.submit(execute)
        meanwhile(sent_ids(hook, count))
        return deferred.result(60)


@pytest.mark.parametrize("lines", [1, 700], ids=["few", "more than are read at once"])
def test_each_line_is_shown_once_on_the_way_from_inline_to_trigger_to_resume(
    hook: HorsiesHook, release: str, quick: None, caplog: pytest.LogCaptureFixture, lines: int
) -> None:
    texts = [f"line {number}" for number in range(5 * lines)]

    def write(task_id: str, part: int, attempt: int = 1) -> None:
        first = part * lines + 1 if attempt == 1 else (part - 3) * lines + 1
        write_lines(hook, task_id, *texts[part * lines : (part + 1) * lines], attempt=attempt, first=first)

    def inline(ids: list[str]) -> None:
        begin_attempt(hook, ids[0])
        write(ids[0], 0)
        until_true(lambda: len(lines_in(caplog)) == lines)

    deferred = defer(hook, make_operator(), inline)
    ((task_id,), seen) = deferred.trigger.task_ids, deferred.trigger.serialize()[1]["seen"]
    assert seen == {task_id: [1, lines]}
    write(task_id, 1)  # nobody is there

    async def deferral() -> dict[str, Any]:
        async with firing(deferred.trigger) as fired:
            await until_listening(hook)
            await in_thread(write, task_id, 2)

            async def shown() -> bool:
                return len(lines_in(caplog)) == 3 * lines

            await until(shown)
            # Written in one go with the end, so that the trigger does not see them.
            hub_module.FOLLOW_SECONDS = 3_600
            await asyncio.sleep(2 * QUICKLY)
            await in_thread(write, task_id, 3, 2)
            await in_thread(write, task_id, 4, 2)
            await in_thread(end_task, hook, task_id, TaskState.COMPLETED, release)
            return await fired

    event = run(deferral())
    assert make_operator().execute_complete(context(), event) == 1
    assert lines_in(caplog) == texts
    assert sum(message.startswith("[attempt 2] ") for message in messages(caplog)) == 2 * lines


def test_trigger_of_an_operator_knows_when_it_deferred(hook: HorsiesHook, release: str) -> None:
    before = datetime.now(UTC)
    deferred = defer(hook, make_operator(inline_wait=timedelta(0)), lambda ids: None)
    _, kwargs = deferred.trigger.serialize()
    assert before <= datetime.fromisoformat(kwargs["deferred_at"]) <= datetime.now(UTC)


def test_event_of_a_trigger_of_an_earlier_release_shows_everything_at_the_end(
    hook: HorsiesHook, release: str, caplog: pytest.LogCaptureFixture
) -> None:
    deferred = defer(hook, make_operator(inline_wait=timedelta(0)), lambda ids: None)
    _, kwargs = deferred.trigger.serialize()
    del kwargs["seen"]
    (task_id,) = kwargs["task_ids"]
    write_lines(hook, task_id, "one", "two")
    end_task(hook, task_id, TaskState.COMPLETED, release)
    event = run(event_of(HorsiesTrigger(**kwargs)))
    assert "seen" not in event
    make_operator().execute_complete(context(), event)
    assert lines_in(caplog) == ["one", "two"]


def test_operator_that_does_not_defer_shows_lines_and_progress_as_they_come(
    hook: HorsiesHook, release: str, caplog: pytest.LogCaptureFixture
) -> None:
    operator = make_operator(deferrable=False)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, context())
        (task_id,) = sent_ids(hook)
        write_progress(hook, task_id, 4, stage="stage 3 of 7")
        write_lines(hook, task_id, "first")
        begun = time.monotonic()
        until_true(lambda: lines_in(caplog) == ["first"])
        assert time.monotonic() - begun < 4
        assert "Progress: 40 % (4 of 10), stage 3 of 7" in messages(caplog)
        write_lines(hook, task_id, "last", first=2)
        end_task(hook, task_id, TaskState.COMPLETED, release)
        assert running.result(60) == 1
    assert lines_in(caplog) == ["first", "last"]


def test_cancelled_task_shows_its_last_lines_though_they_come_late(
    hook: HorsiesHook, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    operator = make_operator(deferrable=False)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, context())
        (task_id,) = sent_ids(hook)
        begin_attempt(hook, task_id)
        hook.cancel_task(task_id)
        time.sleep(0.5)
        write_lines(hook, task_id, "interrupted")
        end_attempt(hook, task_id, outcome="CANCELLED", metrics={"jobs": 3, "input_bytes": 2_048})
        with pytest.raises(TaskCancelled):
            running.result(60)
    assert messages(caplog)[-3:] == [
        "[attempt 1] interrupted",
        f"Task {task_id}, attempt 1: CANCELLED after 12.3 s on node (worker worker-7)",
        f"Task {task_id}, attempt 1, metrics: jobs 3, input 2.0 KiB",
    ]


def test_attempts_that_cannot_be_read_fail_no_task(
    hook: HorsiesHook, release: str, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    operator = make_operator(deferrable=False)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, context())
        (task_id,) = sent_ids(hook)
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute("DROP TABLE airflow_horsies.attempts, airflow_horsies.logs")
        end_task(hook, task_id, TaskState.COMPLETED, release)
        assert running.result(60) == 1
    assert "The workers' records of the attempts cannot be read" in messages(caplog)[-1]


@pytest.mark.parametrize("show_logs", [True, False])
def test_batch_shows_lines_where_it_is_asked_to(
    hook: HorsiesHook, release: str, quick: None, caplog: pytest.LogCaptureFixture, show_logs: bool
) -> None:
    given = {"items": [{}, {}], "show_logs": True} if show_logs else {"items": [{}, {}]}

    def inline(ids: list[str]) -> None:
        write_lines(hook, ids[1], "inline")
        if show_logs:
            until_true(lambda: lines_in(caplog) == ["inline"])

    deferred = defer(hook, make_operator(HorsiesBatchOperator, **given), inline, count=2)
    ids = sent_ids(hook, 2)

    async def deferral() -> dict[str, Any]:
        async with firing(deferred.trigger) as fired:
            await until_listening(hook)
            await in_thread(write_lines, hook, ids[0], "deferred")
            await asyncio.sleep(5 * QUICKLY)
            await in_thread(write_lines, hook, ids[0], "at the end", first=2)
            for task_id in ids:
                await in_thread(end_task, hook, task_id, TaskState.COMPLETED, release)
            return await fired

    event = run(deferral())
    make_operator(HorsiesBatchOperator, **given).execute_complete(context(), event)
    shown = [message for message in messages(caplog) if message.startswith("[item")]
    assert shown == (
        ["[item 1, attempt 1] inline", "[item 0, attempt 1] deferred", "[item 0, attempt 1] at the end"]
        if show_logs
        else []
    )
