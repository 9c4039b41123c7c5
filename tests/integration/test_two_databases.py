"""One DAG on two horsies databases, each with a worker: submissions, waits, cancels and pages, and one that is down."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec, TaskState, latest_task_ids
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator, releasing
from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.triggers import HorsiesTrigger
from tests.chaos.proxy import Proxy
from tests.integration.conftest import _cloned, make_worker
from tests.integration.releases import MOVED
from tests.integration.test_changes import INSTANCE
from tests.integration.test_hub import LATER, run, until_listening
from tests.integration.test_operator_changes import context
from tests.integration.test_triggers import event_of, in_thread
from tests.integration.ui_site import Fields, Site, api_path

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

LEFT, RIGHT = "horsies_left", "horsies_right"
WAITERS = 20

Hooks = Mapping[str, HorsiesHook]


@pytest.fixture(scope="module")
def databases(
    postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Connection to database; each has a worker."""
    with ExitStack() as opened:
        found = {}
        for conn_id in (LEFT, RIGHT):
            clone = _cloned(postgres, template)
            found[conn_id] = next(clone)
            opened.callback(next, clone, None)
            opened.enter_context(make_worker(postgres, found[conn_id], release, tmp_path_factory.mktemp(conn_id)))
        yield found


@pytest.fixture
def way_to_right(postgres: EmbeddedPostgres) -> Iterator[Proxy]:
    """What Airflow's side reaches the right database through."""
    proxy = Proxy()
    proxy.add(RIGHT, postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def hooks(
    monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, databases: dict[str, str], way_to_right: Proxy
) -> Iterator[Hooks]:
    """Hooks of this test, which lead to each database directly; operators and triggers find both by their ids."""
    with ExitStack() as opened:
        made = {}
        for conn_id, database in databases.items():
            info = postgres.conninfo(database)
            stored = {"conn_type": "horsies", "host": info["host"], "port": int(info["port"]), "schema": database}
            stored |= {"login": info["user"], "password": info["password"]}
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}_DIRECTLY", json.dumps(stored))
            if conn_id == RIGHT:
                stored["port"] = way_to_right.routes[RIGHT].port
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(stored))
            made[conn_id] = opened.enter_context(HorsiesHook(f"{conn_id}_directly"))
        yield made


@pytest.fixture
def instance() -> TaskInstanceKey:
    return TaskInstanceKey(dag_id=INSTANCE.dag_id, run_id=f"manual__{uuid.uuid4().hex}", task_id="load")


def one(conn_id: str, **given: Any) -> HorsiesOperator:
    task = {"task_id": "load", "task_name": "add", "kwargs": {"a": 1, "b": 2}, "show_logs": False}
    return HorsiesOperator(**{**task, **_deferred(conn_id), **given})


def batch(conn_id: str) -> HorsiesBatchOperator:
    items = [{"a": number, "b": 1} for number in range(3)]
    return HorsiesBatchOperator(task_id="load", task_name="add", items=items, **_deferred(conn_id))


def _deferred(conn_id: str) -> dict[str, Any]:
    # The delay keeps the task from ending before its operator has deferred.
    later = {"deferrable": True, "inline_wait": timedelta(0), "delay": timedelta(seconds=2)}
    return {"horsies_conn_id": conn_id, **later}


def context_of(instance: TaskInstanceKey) -> dict[str, Any]:
    made = context()
    made["ti"].run_id = instance.run_id
    return made


def defer(operator: HorsiesTaskOperator, instance: TaskInstanceKey) -> Any:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(instance))
    return deferred.value.trigger


def values_of(instance: TaskInstanceKey, *operators: HorsiesTaskOperator) -> list[Any]:
    """Deferred one after another, awaited in one process, and resumed."""
    triggers = [defer(operator, instance) for operator in operators]

    async def wait() -> list[dict[str, Any]]:
        return await asyncio.gather(*(event_of(trigger) for trigger in triggers))

    events = run(wait())
    resumed = zip(operators, events, strict=True)
    return [operator.execute_complete(context_of(instance), event) for operator, event in resumed]


def test_operators_of_one_dag_use_two_databases(hooks: Hooks, instance: TaskInstanceKey) -> None:
    """The task instance is the same on purpose: only the connection tells the two apart."""
    assert values_of(instance, one(LEFT), batch(RIGHT)) == [3, [1, 2, 3]]
    for conn_id, count in ((LEFT, 1), (RIGHT, 3)):
        sent = hooks[conn_id].read_submissions(instance)
        tasks = hooks[conn_id].read_tasks(each.horsies_task_id for each in sent)
        assert [task.state for task in tasks.values()] == [TaskState.COMPLETED] * count


def test_cancel_reaches_the_database_of_the_operator_only(
    hooks: Hooks, instance: TaskInstanceKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releasing, "read_state", lambda instance: InstanceState(True, "failed"))
    operators = {conn_id: one(conn_id, delay=timedelta(hours=1)) for conn_id in hooks}
    for operator in operators.values():
        defer(operator, instance)

    def states() -> dict[str, TaskState]:
        ids = {conn_id: latest_task_ids(hook.read_submissions(instance)) for conn_id, hook in hooks.items()}
        return {conn_id: hooks[conn_id].read_task(task_id).state for conn_id, (task_id,) in ids.items()}

    operators[RIGHT].on_kill()
    assert states() == {LEFT: TaskState.PENDING, RIGHT: TaskState.CANCELLED}
    operators[LEFT].on_kill()
    assert states() == {LEFT: TaskState.CANCELLED, RIGHT: TaskState.CANCELLED}


@pytest.mark.parametrize("how", ["refusing", "half_open"])
def test_a_database_that_is_down_holds_up_nobody_who_waits_on_the_other(
    hooks: Hooks, way_to_right: Proxy, instance: TaskInstanceKey, how: str
) -> None:
    ids = {conn_id: hook.enqueue_tasks([LATER] * WAITERS) for conn_id, hook in hooks.items()}

    def is_down() -> AbstractContextManager[None]:
        down: Callable[[str], AbstractContextManager[None]] = getattr(way_to_right, how)
        return down(RIGHT)

    async def check() -> None:
        waiting = {
            conn_id: [
                asyncio.create_task(event_of(HorsiesTrigger(task_ids=[task_id], horsies_conn_id=conn_id)))
                for task_id in ids[conn_id]
            ]
            for conn_id in hooks
        }
        for hook in hooks.values():
            # One connection of each database listens, whatever the number of waiters.
            await until_listening(hook)
        with ExitStack() as until_up:
            await in_thread(until_up.enter_context, is_down())
            for conn_id, hook in hooks.items():
                await in_thread(hook.cancel_tasks, ids[conn_id])
            ended = await asyncio.gather(*waiting[LEFT])
            assert {each["reason"] for each in ended} == {"ended"}
            # New work of the database that is up is sent, run and awaited meanwhile.
            new = await in_thread(defer, one(LEFT), instance)
            assert (await event_of(new))["reason"] == "ended"
            assert not any(task.done() for task in waiting[RIGHT])
            await in_thread(until_up.close)
        assert {each["reason"] for each in await asyncio.gather(*waiting[RIGHT])} == {"ended"}

    run(check())


@pytest.mark.usefixtures("of_site")
def test_pages_show_the_database_of_their_connection(
    site: Site, fields: Fields, hooks: Hooks, databases: dict[str, str], instance: TaskInstanceKey
) -> None:
    """An api-server has one connection. It shows what was sent through it, and nothing of the other."""
    ids = {}
    for number, (conn_id, hook) in enumerate(hooks.items()):
        spec = TaskSpec(task_name="add", kwargs={"a": number, "b": 0}, delay=timedelta(hours=1))
        ids[conn_id] = hook.submit_task(spec, instance, AirflowTry(try_number=1)).task_id
    for conn_id, database in databases.items():
        site.connect(fields(database))
        shown = site.ask(api_path(instance)).json()
        assert [each["horsies_task_id"] for each in shown["submissions"]] == [ids[conn_id]]
