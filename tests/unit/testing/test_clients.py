"""The clients of the test kit have the methods of the real ones, and none of them reaches for a database."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.client.hub import Waiter
from airflow_horsies.exceptions import (
    HorsiesError,
    InvalidTask,
    TaskIdTaken,
    TaskNotCancellable,
    TaskNotFound,
    WaitTimeout,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import CancelOutcome, RetryPolicy, TaskSpec, TaskState
from airflow_horsies.testing import FakeAsyncClient, FakeClient, FakeHorsies
from airflow_horsies.testing.async_client import FakeWaiter
from tests.unit.fakes import INSTANCE

ID = "0198a0de-0000-7000-8000-000000000001"
PAIRS = [(Client, FakeClient), (AsyncClient, FakeAsyncClient), (Waiter, FakeWaiter)]
# They run SQL, and so raise an error.
OF_A_DATABASE = {
    Client: {"run", "read", "write", "read_ledger", "drive", "schema"},
    AsyncClient: {"read", "drive", "subscribe_callback"},
    Waiter: set[str](),
}
# They work on what the client itself knows.
AS_THEY_ARE = {
    Client: {"settings", "namespace", "stay_in", "close"},
    AsyncClient: {"settings"},
    Waiter: {"take", "take_ended", "wants", "deliver", "add_news", "fail"},
}


def public(kind: type[Any]) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("real", "fake"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_method_of_the_real_one_is_there_with_the_same_signature(real: type[Any], fake: type[Any]) -> None:
    own = public(real) - OF_A_DATABASE[real] - AS_THEY_ARE[real]
    assert own <= public(fake)
    assert not public(fake) & (OF_A_DATABASE[real] | AS_THEY_ARE[real])
    for name in own:
        of_real, of_fake = getattr(real, name), getattr(fake, name)
        assert inspect.signature(of_fake, eval_str=True) == inspect.signature(of_real, eval_str=True), name
        assert inspect.iscoroutinefunction(of_fake) == inspect.iscoroutinefunction(of_real), name


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.schema,
        lambda client: client.run(lambda: iter(())),
        lambda client: client.read(lambda wire: iter(())),
        lambda client: client.read_ledger(1, lambda: iter(()), otherwise=None),
    ],
    ids=["schema", "run", "read", "read_ledger"],
)
def test_what_needs_sql_says_that_there_is_no_database(use: Any) -> None:
    with pytest.raises(HorsiesError, match="FakeHorsies has no database"):
        use(FakeClient())


def test_hook_has_no_connection_to_give(horsies: FakeHorsies) -> None:
    with pytest.raises(HorsiesError, match="FakeHorsies has no database"):
        HorsiesHook().get_conn()
    assert HorsiesHook().test_connection()[0] is False


def test_hook_works_on_the_fake_and_looks_no_connection_up(horsies: FakeHorsies) -> None:
    horsies.returns("add", lambda a, b: a + b)
    with HorsiesHook("not_defined_anywhere") as hook:
        task_id = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))
        assert hook.read_states([task_id]) == {task_id: TaskState.COMPLETED}
        (task,) = hook.wait([task_id])
        assert (task.result and task.result.ok, task.hostname is not None) == (3, True)
        assert hook.client is hook.client
        assert [worker.alive for worker in hook.read_workers()] == [True]
        assert hook.list_tasks(states={TaskState.FAILED}).tasks == ()


def test_same_on_an_event_loop(horsies: FakeHorsies) -> None:
    horsies.returns("add", 3)
    horsies.never_ends("slow")

    async def use() -> None:
        hook = HorsiesHook()
        task_id = await hook.enqueue_task_async(TaskSpec(task_name="add"))
        assert (await hook.read_task_async(task_id)).state is TaskState.COMPLETED
        async with hook.subscribe([task_id]) as waiter:
            while waiter.pending:
                await waiter.news()
            assert waiter.ended == {task_id: TaskState.COMPLETED}
        slow = await hook.enqueue_task_async(TaskSpec(task_name="slow"))
        with pytest.raises(WaitTimeout):
            await hook.wait_async([slow], timeout_seconds=3_600)
        assert await hook.cancel_task_async(slow) is CancelOutcome.CANCELLED

    asyncio.run(use())


@pytest.fixture
def client(horsies: FakeHorsies) -> FakeClient:
    horsies.returns("add", 3)
    horsies.never_ends("slow")
    return FakeClient(memory=horsies.memory, ledger=horsies.ledger)


def test_task_under_a_known_id_or_key_is_not_sent_again(client: FakeClient) -> None:
    given = TaskSpec(task_name="add", task_id=ID)
    assert client.enqueue_task(given) == client.enqueue_task(given) == ID
    keyed = TaskSpec(task_name="add", idempotency_key="k")
    assert client.enqueue_task(keyed) == client.enqueue_task(keyed)
    with pytest.raises(TaskIdTaken):
        client.enqueue_task(TaskSpec(task_name="add", task_id=ID, kwargs={"a": 1}))
    for specs in ([given], [keyed]):
        with pytest.raises(TaskIdTaken):
            client.enqueue_tasks([TaskSpec(task_name="add"), *specs])
    assert len(client.memory.tasks) == 2


@pytest.mark.parametrize(
    "option",
    [
        {"queue": "other"},
        {"priority": 3},
        {"good_until": datetime(2030, 1, 1, tzinfo=UTC)},
        {"retry_policy": RetryPolicy.fixed([1], auto_retry_for=["A_B"])},
        {"delay": timedelta(seconds=1)},
    ],
    ids=lambda option: next(iter(option)),
)
@pytest.mark.parametrize("same", [{"idempotency_key": "k"}, {"task_id": ID}], ids=["key", "id"])
def test_another_option_under_a_known_id_or_key_is_refused(client: FakeClient, same: Any, option: Any) -> None:
    client.enqueue_task(TaskSpec(task_name="add", **same))
    with pytest.raises(TaskIdTaken, match="with other arguments or options"):
        client.enqueue_task(TaskSpec(task_name="add", **same, **option))


@pytest.mark.parametrize("same", [{"idempotency_key": "k"}, {"task_id": ID}], ids=["key", "id"])
def test_key_or_id_twice_in_one_call_is_refused_and_nothing_is_sent(client: FakeClient, same: Any) -> None:
    twice = TaskSpec(task_name="add", **same)
    with pytest.raises(InvalidTask):
        client.enqueue_tasks([TaskSpec(task_name="add"), twice, twice])
    assert client.memory.tasks == {}


def test_page_and_states_are_checked_as_by_the_real_client(client: FakeClient) -> None:
    for limit in (0, 2_001, "3", True):
        with pytest.raises(InvalidTask, match="from 1 to 2000"):
            client.list_tasks(limit=limit)  # type: ignore[arg-type]
    task_id = client.enqueue_task(TaskSpec(task_name="slow"))
    assert [task.id for task in client.list_tasks(states={"RUNNING"}).tasks] == [task_id]  # type: ignore[arg-type]
    for states in ("RUNNING", {"NOPE"}):
        for use in (client.list_tasks, partial(client.cancel_task, task_id)):
            with pytest.raises(InvalidTask, match="states"):
                use(states=states)  # type: ignore[arg-type]


def test_wait_without_time_finds_no_task_ended_that_nobody_has_read(client: FakeClient) -> None:
    first, second = (client.enqueue_task(TaskSpec(task_name="add")) for _ in range(2))
    with pytest.raises(WaitTimeout):
        client.wait([first], timeout_seconds=0)
    assert client.wait([first], timeout_seconds=0)[0].state is TaskState.COMPLETED
    assert client.read_states([second]) == {second: TaskState.COMPLETED}
    assert client.wait([second], timeout_seconds=0)[0].state is TaskState.COMPLETED


def test_invalid_task_is_refused_as_by_the_real_client(client: FakeClient) -> None:
    with pytest.raises(InvalidTask) as caught:
        client.enqueue_tasks([TaskSpec(task_name="add"), TaskSpec(task_name="add", kwargs={"x": float("nan")})])
    assert caught.value.field == "task 1: kwargs.x"
    with pytest.raises(InvalidTask, match="list of ids"):
        client.read_tasks(ID)


def test_what_does_not_exist_is_not_found(client: FakeClient) -> None:
    assert (client.read_tasks([ID]), client.cancel_tasks([ID]), client.release_tasks([ID], INSTANCE)) == ({}, {}, {})
    for use in (client.read_task, client.cancel_task):
        with pytest.raises(TaskNotFound, match="this test has not sent it"):
            use(ID)


def test_pages_follow_each_other(client: FakeClient) -> None:
    sent = client.enqueue_tasks([TaskSpec(task_name="add", kwargs={"n": n}) for n in range(5)])
    found: list[str] = []
    page = client.list_tasks(limit=2)
    while True:
        found += [task.id for task in page.tasks]
        if page.next is None:
            break
        page = client.list_tasks(limit=2, before=page.next)
    assert sorted(found) == sorted(sent)
    assert len(found) == 5


def test_cancel_says_what_it_found(client: FakeClient) -> None:
    live, done = client.enqueue_task(TaskSpec(task_name="slow")), client.enqueue_task(TaskSpec(task_name="add"))
    client.read_tasks([live, done])
    with pytest.raises(TaskNotCancellable):
        client.cancel_task(live, states={TaskState.PENDING})
    assert client.cancel_tasks([live, done]) == {
        live: CancelOutcome.CANCELLED,
        done: CancelOutcome.ALREADY_FINISHED,
    }
    assert client.cancel_task(live) is CancelOutcome.ALREADY_CANCELLED
    (record,) = client.read_attempts([live])[live]
    assert (record.outcome, record.finished_at is not None) == ("CANCELLED", True)


def test_wait_without_end_for_a_task_without_end_is_an_error(client: FakeClient) -> None:
    task_id = client.enqueue_task(TaskSpec(task_name="slow"))
    turns: list[int] = []
    with pytest.raises(HorsiesError, match="'slow' does not end in this test"):
        client.wait([task_id], meanwhile=lambda: turns.append(1))
    with pytest.raises(WaitTimeout, match=task_id):
        client.wait([task_id], timeout_seconds=3_600)
    assert turns == [1]
    (task,) = client.wait([task_id], until=lambda ended: True)
    assert task.state is TaskState.RUNNING


def test_lines_and_progress_are_those_of_the_test(horsies: FakeHorsies, client: FakeClient) -> None:
    horsies.logs("slow", ["first", "second"])
    horsies.logs("slow", ["third"], level="WARNING")
    horsies.progress("slow", 4, 10, stage="sort")
    task_id = client.enqueue_task(TaskSpec(task_name="slow"))
    assert client.read_lines(task_id) == []
    before = datetime.now(UTC)
    assert client.read_task(task_id).state is TaskState.RUNNING
    lines = client.read_lines(task_id)
    assert [(line.number, line.level, line.text) for line in lines] == [
        (1, "INFO", "first"),
        (2, "INFO", "second"),
        (3, "WARNING", "third"),
    ]
    assert lines[0].logged_at >= before
    assert client.read_lines(task_id, after=lines[1].cursor) == lines[2:]
    assert client.read_progress([task_id])[task_id].fraction == 0.4
    client.cancel_task(task_id)
    assert client.read_progress([task_id]) == {}
