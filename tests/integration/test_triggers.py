"""Triggers as the triggerer runs them: on an event loop, with a connection looked up by its id."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_horsies import triggers
from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.client import hub as hub_module
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.ledger import read_ledger_version
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.triggers import (
    HorsiesBatchTrigger,
    HorsiesQueueTrigger,
    HorsiesSensorTrigger,
    HorsiesSubmissionTrigger,
    HorsiesTrigger,
    base,
)
from tests.integration.releases import MOVED
from tests.integration.test_hub import LATER, backends, run, terminate_backends, until_listening
from tests.integration.test_submit import end_task

CONN_ID = "horsies_stored"
ABSENT = "01a1e223-68a7-7210-ad76-a42348fdcb7c"
INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load", map_index=-1)
KEY = {"dag_id": "sales", "run_id": "manual__1", "task_id": "load", "map_index": -1}

on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


def store_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> None:
    """Let hooks find the database under CONN_ID, as they would in a deployment."""
    info = postgres.conninfo(database)
    stored = {
        "conn_type": "horsies",
        "host": info["host"],
        "port": int(info["port"]),
        "login": info["user"],
        "password": info["password"],
        "schema": info["dbname"],
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(stored))


@pytest.fixture(autouse=True)
def stored_connection(
    monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, request: pytest.FixtureRequest
) -> None:
    """The database of the test, whichever it asks for."""
    asked = [name for name in ("served_database", "empty_database") if name in request.fixturenames]
    store_connection(monkeypatch, postgres, request.getfixturevalue(asked[0] if asked else "database"))


def soon(seconds: float = 0.5) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def event_of(trigger: HorsiesTrigger) -> dict[str, Any]:
    """The event of the trigger after the way through Airflow's database."""
    path, kwargs = trigger.serialize()
    loaded = getattr(triggers, path.rpartition(".")[2])(**json.loads(json.dumps(kwargs)))
    async for event in loaded.run():
        payload: dict[str, Any] = json.loads(json.dumps(event.payload))
        return payload
    raise AssertionError("it never fired")


@asynccontextmanager
async def firing(trigger: HorsiesTrigger) -> AsyncIterator[asyncio.Task[dict[str, Any]]]:
    """The trigger at work in the background."""
    task = asyncio.create_task(event_of(trigger))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED])
def test_end_of_the_tasks_fires_with_their_ids(hook: HorsiesHook, release: str, state: TaskState) -> None:
    ids = hook.enqueue_tasks([LATER] * 2)

    async def check() -> None:
        async with firing(HorsiesTrigger(task_ids=ids, horsies_conn_id=CONN_ID)) as fired:
            await until_listening(hook)
            await in_thread(end_task, hook, ids[0], state, release)
            await asyncio.sleep(0.2)
            assert not fired.done()
            await in_thread(hook.cancel_task, ids[1])
            event = await fired
            assert (event["reason"], event["message"], event["task_ids"]) == ("ended", None, ids)

    run(check())


def test_task_that_ended_before_fires_at_once(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(LATER)
    hook.cancel_task(task_id)
    assert run(event_of(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID)))["reason"] == "ended"


def test_deadline_fires_and_leaves_the_task_to_the_operator(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(LATER)
    begun = time.monotonic()
    event = run(event_of(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, deadline=soon(0.5))))
    assert event["reason"] == "timed_out"
    assert 0.4 < time.monotonic() - begun < 5
    assert hook.read_task(task_id).state is TaskState.PENDING


def test_deadline_is_absolute_so_a_restarted_triggerer_does_not_begin_again(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(LATER)
    begun = time.monotonic()
    event = run(event_of(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, deadline=soon(-60))))
    assert event["reason"] == "timed_out"
    assert time.monotonic() - begun < 2


def test_queue_that_nobody_serves_fires(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", queue="nobody"))
    trigger = HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, queue_deadline=soon(0.3), deadline=soon(60))
    assert run(event_of(trigger))["reason"] == "not_served"


def test_whether_a_queue_is_served_is_asked_without_reading_arguments(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk has the arguments of up to 10,000 items, and all triggers share the event loop."""
    monkeypatch.setattr(AsyncClient, "read_tasks", None)
    test_queue_that_nobody_serves_fires(hook)


def test_task_that_started_in_time_is_waited_for(hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", queue="nobody"))
    with hook.get_conn() as connection:
        connection.execute("UPDATE horsies_tasks SET status = 'RUNNING', started_at = now()")
    trigger = HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, queue_deadline=soon(0.2), deadline=soon(1))
    assert run(event_of(trigger))["reason"] == "timed_out"


@on_one_release
def test_queue_that_is_served_is_waited_for(served_database: str, make_hook: Any) -> None:
    hook = make_hook(served_database)
    task_id = hook.enqueue_task(TaskSpec(task_name="sleep", kwargs={"seconds": 2}))
    trigger = HorsiesTrigger(task_ids=[task_id], horsies_conn_id=CONN_ID, queue_deadline=soon(0.2))
    assert run(event_of(trigger))["reason"] == "ended"
    assert hook.read_task(task_id).state is TaskState.COMPLETED


def test_task_that_does_not_exist_fires(hook: HorsiesHook) -> None:
    assert run(event_of(HorsiesTrigger(task_ids=[ABSENT], horsies_conn_id=CONN_ID)))["reason"] == "not_found"


def test_task_that_vanishes_meanwhile_fires(hook: HorsiesHook) -> None:
    present = hook.enqueue_task(LATER)
    trigger = HorsiesTrigger(task_ids=[present, ABSENT], horsies_conn_id=CONN_ID)
    assert run(event_of(trigger))["reason"] == "not_found"


def test_id_that_is_none_fires_as_an_error(hook: HorsiesHook) -> None:
    event = run(event_of(HorsiesTrigger(task_ids=["nonsense"], horsies_conn_id=CONN_ID)))
    assert (event["reason"], event["message"]) == ("error", "task_id: must be a UUID, not 'nonsense'.")


def test_database_without_horsies_fires_as_an_error(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LASTING_SECONDS", 0.5)
    event = run(event_of(HorsiesTrigger(task_ids=[ABSENT], horsies_conn_id=CONN_ID)))
    assert event["reason"] == "error"
    assert "horsies" in event["message"]


@pytest.fixture
def marked_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Airflow says of the task instance that is killed."""

    async def read_state(instance: TaskInstanceKey) -> InstanceState:
        return InstanceState(exists=True, state="failed")

    monkeypatch.setattr(base, "read_state_async", read_state)


@pytest.mark.usefixtures("marked_failed")
@pytest.mark.parametrize("cancel_on_kill", [True, False])
def test_kill_cancels_the_tasks(hook: HorsiesHook, cancel_on_kill: bool) -> None:
    ids = [each.task_id for each in hook.submit_tasks([LATER] * 3, INSTANCE, AirflowTry(try_number=1))]
    trigger = HorsiesTrigger(task_ids=ids, task_instance=KEY, horsies_conn_id=CONN_ID, cancel_on_kill=cancel_on_kill)
    run(trigger.on_kill())
    expected = TaskState.CANCELLED if cancel_on_kill else TaskState.PENDING
    assert set(hook.read_states(ids).values()) == {expected}


def test_cancelled_trigger_cancels_nothing_and_no_other_trigger(hook: HorsiesHook) -> None:
    """As when the triggerer shuts down, or hands its triggers over."""
    ids = hook.enqueue_tasks([LATER] * 2)

    async def check() -> None:
        async with firing(HorsiesTrigger(task_ids=ids[1:], horsies_conn_id=CONN_ID)) as stays:
            async with firing(HorsiesTrigger(task_ids=ids[:1], horsies_conn_id=CONN_ID)) as leaves:
                await until_listening(hook)
                leaves.cancel()
            assert set((await in_thread(hook.read_states, ids)).values()) == {TaskState.PENDING}
            await in_thread(hook.cancel_task, ids[1])
            assert (await stays)["reason"] == "ended"

    run(check())


def test_fifty_triggers_share_a_connection_and_outlive_its_loss(hook: HorsiesHook) -> None:
    ids = hook.enqueue_tasks([LATER] * 50)

    async def check() -> None:
        fired = [
            asyncio.create_task(event_of(HorsiesTrigger(task_ids=[each], horsies_conn_id=CONN_ID))) for each in ids
        ]
        await until_listening(hook)
        assert (await in_thread(backends, hook))[0] == 1
        await in_thread(terminate_backends, hook)
        await in_thread(hook.cancel_tasks, ids)
        assert [each["reason"] for each in await asyncio.gather(*fired)] == ["ended"] * 50

    run(check())


# -- a batch -----------------------------------------------------------------------------------------------------------


def test_batch_fires_when_all_have_ended_or_too_many_failed(hook: HorsiesHook, release: str) -> None:
    sent = hook.submit_tasks([LATER] * 4, INSTANCE, AirflowTry(try_number=1))
    ids = [each.task_id for each in sent]

    def trigger(max_failures: int) -> HorsiesBatchTrigger:
        return HorsiesBatchTrigger(task_instance=KEY, life=1, horsies_conn_id=CONN_ID, max_failures=max_failures)

    async def check() -> None:
        async with firing(trigger(1)) as strict, firing(trigger(2)) as lenient:
            await until_listening(hook)
            await in_thread(end_task, hook, ids[0], TaskState.COMPLETED, release)
            await in_thread(end_task, hook, ids[1], TaskState.FAILED, release)
            await asyncio.sleep(0.2)
            assert not strict.done()
            await in_thread(hook.cancel_task, ids[2])
            assert (await strict)["reason"] == "decided"
            assert not lenient.done()
            await in_thread(end_task, hook, ids[3], TaskState.COMPLETED, release)
            event = await lenient
            assert (event["reason"], event["life"], event["max_failures"]) == ("ended", 1, 2)

    run(check())


def test_batch_is_that_of_one_life_and_the_last_rounds(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_tasks([LATER] * 2, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, first[0].task_id, TaskState.FAILED, release)
    second = hook.submit_tasks([LATER] * 2, INSTANCE, AirflowTry(try_number=2))
    trigger = HorsiesBatchTrigger(task_instance=KEY, life=1, horsies_conn_id=CONN_ID)

    async def find() -> list[str]:
        return await trigger._find_task_ids(await HorsiesHook(CONN_ID).async_client())

    wanted = run(find())
    assert wanted == [each.task_id for each in second]
    assert wanted[0] != first[0].task_id


@pytest.mark.usefixtures("marked_failed")
def test_kill_cancels_the_batch(hook: HorsiesHook) -> None:
    sent = hook.submit_tasks([LATER] * 3, INSTANCE, AirflowTry(try_number=1))
    run(HorsiesBatchTrigger(task_instance=KEY, life=1, horsies_conn_id=CONN_ID).on_kill())
    assert set(hook.read_states([each.task_id for each in sent]).values()) == {TaskState.CANCELLED}


@on_one_release
def test_trigger_that_begins_while_postgres_is_down_waits_for_it(
    hook: HorsiesHook, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.1)
    sent = hook.submit_tasks([LATER] * 3, INSTANCE, AirflowTry(try_number=1))

    async def check() -> None:
        restarting = asyncio.create_task(in_thread(postgres.restart))
        await asyncio.sleep(0.05)
        trigger = HorsiesBatchTrigger(task_instance=KEY, life=1, horsies_conn_id=CONN_ID, deadline=soon(50))
        async with firing(trigger) as fired:
            await restarting
            await in_thread(hook.cancel_tasks, [each.task_id for each in sent])
            assert (await fired)["reason"] == "ended"

    run(check())


# -- those of the sensors ----------------------------------------------------------------------------------------------


def test_sensor_trigger_fires_at_the_first_failure_and_cancels_nothing(hook: HorsiesHook, release: str) -> None:
    ids = hook.enqueue_tasks([LATER] * 3)
    trigger = HorsiesSensorTrigger(task_ids=ids, failed_states=["FAILED"], horsies_conn_id=CONN_ID)

    async def check() -> None:
        async with firing(trigger) as fired:
            await until_listening(hook)
            await in_thread(end_task, hook, ids[1], TaskState.FAILED, release)
            assert (await fired)["reason"] == "decided"
        await trigger.on_kill()

    run(check())
    assert hook.read_task(ids[0]).state is TaskState.PENDING


def submission_trigger(**options: Any) -> HorsiesSubmissionTrigger:
    return HorsiesSubmissionTrigger(
        **{
            "task_instance": KEY,
            "failed_states": ["FAILED", "CANCELLED", "EXPIRED"],
            "poll_seconds": 0.2,
            "horsies_conn_id": CONN_ID,
            **options,
        }
    )


COPIES = """
INSERT INTO airflow_horsies.submissions (
    namespace, dag_id, run_id, task_id, map_index, position, life, round, try_number, horsies_task_id, base_url,
    task_name, queue_name
)
SELECT
    namespace, dag_id, run_id, task_id, map_index, number, life, round, try_number, gen_random_uuid(), base_url,
    task_name, queue_name
FROM airflow_horsies.submissions CROSS JOIN generate_series(1, %s) AS number
"""


@on_one_release
def test_looking_for_newer_tasks_of_a_large_batch_does_not_block_the_event_loop(hook: HorsiesHook) -> None:
    first = hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1)).task_id
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute(COPIES, (99_999,))
        connection.execute("SET LOCAL statement_timeout = '60s'")
        connection.execute("ANALYZE airflow_horsies.submissions")

    async def check() -> None:
        client = await HorsiesHook(CONN_ID).async_client()
        began = time.thread_time()
        found = await submission_trigger()._find_task_ids(client)
        seconds = time.thread_time() - began
        assert (found[0], len(found)) == (first, 100_000)
        assert seconds < 0.25, f"{seconds:.2f} s"

    run(check())


def test_submission_is_waited_for_before_the_ledger_exists_until_it_ends(hook: HorsiesHook, release: str) -> None:
    assert read_ledger_version(hook.client) == 0

    async def check() -> None:
        async with firing(submission_trigger()) as fired:
            await asyncio.sleep(0.5)
            assert not fired.done(), fired.result()
            sent = await in_thread(hook.submit_task, LATER, INSTANCE, AirflowTry(try_number=1))
            await until_listening(hook)
            await asyncio.sleep(0.3)
            assert not fired.done(), fired.result()
            await in_thread(end_task, hook, sent.task_id, TaskState.COMPLETED, release)
            assert (await fired)["reason"] == "ended"

    run(check())


def test_clear_over_there_is_followed_and_is_no_failure(hook: HorsiesHook, release: str) -> None:
    hook.submit_tasks([LATER] * 2, INSTANCE, AirflowTry(try_number=1))

    async def check() -> None:
        async with firing(submission_trigger(poll_seconds=30)) as fired:
            await until_listening(hook)
            # Cancels both tasks of the first life, and the trigger hears of it.
            second = await in_thread(hook.submit_tasks, [LATER], INSTANCE, AirflowTry(clear_number=1, try_number=2))
            await asyncio.sleep(0.5)
            assert not fired.done(), fired.result()
            await in_thread(end_task, hook, second[0].task_id, TaskState.COMPLETED, release)
            assert (await fired)["reason"] == "ended"

    run(check())


def test_retry_over_there_is_followed_where_failures_do_not_count(hook: HorsiesHook, release: str) -> None:
    first = hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1))
    end_task(hook, first.task_id, TaskState.FAILED, release)

    async def check() -> None:
        assert (await event_of(submission_trigger()))["reason"] == "decided"
        async with firing(submission_trigger(failed_states=[])) as fired:
            await asyncio.sleep(0.5)
            assert not fired.done(), fired.result()
            second = await in_thread(hook.submit_task, LATER, INSTANCE, AirflowTry(try_number=2))
            await in_thread(end_task, hook, second.task_id, TaskState.COMPLETED, release)
            assert (await fired)["reason"] == "ended"

    run(check())


def test_submission_past_its_retention_fires(hook: HorsiesHook) -> None:
    hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1))
    with hook.get_conn() as connection:
        connection.execute("DELETE FROM horsies_tasks")
    assert run(event_of(submission_trigger()))["reason"] == "not_found"


def test_submission_that_never_comes_times_out(hook: HorsiesHook) -> None:
    assert run(event_of(submission_trigger(deadline=soon())))["reason"] == "timed_out"


@on_one_release
def test_submission_trigger_outlives_a_restart_of_postgres(
    hook: HorsiesHook, release: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.1)
    sent = hook.submit_task(LATER, INSTANCE, AirflowTry(try_number=1))

    async def check() -> None:
        async with firing(submission_trigger(poll_seconds=0.05)) as fired:
            await until_listening(hook)
            await in_thread(postgres.restart)
            await in_thread(hook.read_states, [sent.task_id])  # its own connection was cut, too
            await in_thread(end_task, hook, sent.task_id, TaskState.COMPLETED, release)
            assert (await fired)["reason"] == "ended"

    run(check())


@on_one_release
def test_queue_trigger_fires_when_the_queue_is_served_and_has_room(served_database: str, make_hook: Any) -> None:
    hook = make_hook(served_database)
    hook.enqueue_tasks([TaskSpec(task_name="add", queue="unserved")] * 3)

    def trigger(**options: Any) -> HorsiesQueueTrigger:
        return HorsiesQueueTrigger(**{"poll_seconds": 0.1, "horsies_conn_id": CONN_ID, "deadline": soon(), **options})

    async def reasons(*asked: HorsiesQueueTrigger) -> list[str]:
        return [event["reason"] for event in await asyncio.gather(*map(event_of, asked))]

    assert run(
        reasons(
            trigger(queue="default", deadline=soon(30)),
            trigger(queue="default", min_workers=2),
            trigger(queue="unserved"),
            trigger(queue="unserved", min_workers=0, max_depth=4),
            trigger(queue="unserved", min_workers=0, max_depth=3),
        )
    ) == ["ended", "timed_out", "timed_out", "ended", "timed_out"]
