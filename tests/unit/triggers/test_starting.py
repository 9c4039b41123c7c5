from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.log import mask_secret
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_horsies.exceptions import DatabaseUnreachable, SchemaMissing
from airflow_horsies.models import TaskState, node
from airflow_horsies.operators import (
    HorsiesBatchOperator,
    HorsiesGraphOperator,
    HorsiesOperator,
    HorsiesWorkflowOperator,
    starting,
)
from airflow_horsies.sensors import HorsiesSensor, HorsiesWorkflowSensor
from airflow_horsies.testing import FakeAsyncClient, FakeHorsies
from airflow_horsies.triggers import base
from tests.unit.fakes import failing
from tests.unit.triggers.rig import answering
from tests.unit.worker_free import needs_worker_free

pytestmark = needs_worker_free

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# What stands in Airflow's database while tasks wait. Never change an entry: add one for each new form.
STORED = [
    (
        "airflow_horsies.operators.starting.HorsiesStartTrigger",
        '{"task_name":"add","horsies_queue":"default","priority":100,"horsies_retry_policy":null,"good_until":null,'
        '"delay":null,"timeout":null,"retention":null,"retain_input":false,"wait_for_completion":true,'
        '"cancel_on_kill":true,"queue_timeout":null,"show_logs":true,"horsies_conn_id":"horsies_default","kind":"task",'
        '"kwargs":{"day":"{{ ds }}"},"idempotency_key":null,"native":false}',
    ),
    (
        "airflow_horsies.operators.starting.HorsiesStartTrigger",
        '{"task_name":"add","horsies_queue":"default","priority":100,"horsies_retry_policy":null,'
        '"good_until":{"seconds":60.0},"delay":null,"timeout":null,"retention":null,"retain_input":false,'
        '"wait_for_completion":true,"cancel_on_kill":true,"queue_timeout":null,"show_logs":false,'
        '"horsies_conn_id":"horsies_default","kind":"batch","items":[{"day":"{{ ds }}"}],"max_failures":0,'
        '"min_success":null,"native":true}',
    ),
    (
        "airflow_horsies.operators.starting.HorsiesStartTrigger",
        '{"task_name":"add","horsies_queue":"default","priority":100,"horsies_retry_policy":null,"good_until":null,'
        '"delay":null,"timeout":null,"retention":null,"retain_input":false,"wait_for_completion":true,'
        '"cancel_on_kill":true,"queue_timeout":null,"show_logs":false,"horsies_conn_id":"horsies_default",'
        '"kind":"batch","items":[{"day":"{{ ds }}"}],"chunk_size":2,"isolate":"chunk","results":"values",'
        '"max_failures":0,"min_success":null,"native":false}',
    ),
    (
        "airflow_horsies.operators.starting.HorsiesStartTrigger",
        '{"horsies_queue":"default","priority":100,"good_until":{"seconds":60.0},"wait_for_completion":true,'
        '"cancel_on_kill":true,"queue_timeout":null,"show_logs":true,"horsies_conn_id":"horsies_default",'
        '"on_paused":"wait","kind":"workflow","workflow":"flights.month","kwargs":{"day":"{{ ds }}"},"native":false}',
    ),
    (
        "airflow_horsies.operators.starting.HorsiesStartTrigger",
        '{"horsies_queue":"default","priority":100,"good_until":null,"wait_for_completion":true,"cancel_on_kill":true,'
        '"queue_timeout":null,"show_logs":false,"horsies_conn_id":"horsies_default","on_paused":"fail","kind":"graph",'
        '"nodes":{"load":{"task_name":"add","kwargs":{"day":"{{ ds }}"},"join":"all","timeout":60.0}},"output":"load",'
        '"on_error":"fail","success":[],"graph_name":"one","native":false}',
    ),
]


@pytest.fixture
def horsies() -> Any:
    with FakeHorsies() as horsies:
        horsies.returns("add", {"sum": 3})
        for name in ("flights.month", "one"):
            horsies.workflow_returns(name, 3)
        yield horsies


@pytest.fixture
def xcoms(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the trigger stores in Airflow."""
    stored: dict[str, Any] = {}
    monkeypatch.setattr(starting, "push_result", lambda ti, value, log: stored.update(return_value=value))
    monkeypatch.setattr(starting, "delete_result", lambda ti: stored.pop("return_value", None))
    monkeypatch.setattr(starting.ATTEMPTS_LINK, "push", lambda context: stored.update(link="pushed"), raising=False)
    return stored


def start(task: Any, stored: dict[str, Any], *, try_number: int = 1, trace: str | None = "00-a", **more: Any) -> Any:
    """The trigger of a task, as a triggerer creates it."""
    arguments = task.start_trigger_args
    trigger = resolve_name(arguments.trigger_cls)(**arguments.trigger_kwargs)
    ti = SimpleNamespace(
        **{"id": "0198", "dag_id": "sales", "run_id": "r", "task_id": "one", "map_index": -1},
        try_number=try_number,
        context_carrier=None if trace is None else {"traceparent": trace},
        task=SimpleNamespace(),
    )
    ti.xcom_push = lambda key, value: stored.update({key: value})
    run = SimpleNamespace(start_date=more.pop("run_started_at", NOON))
    context = {"ti": ti, "dag_run": run, "dag": None, "ds": "2026-01-01", "run_id": "r"}
    ti.get_template_context = lambda: context
    trigger._task_instance = ti
    trigger._log = logging.getLogger("the trigger")
    vars(trigger).update(more)
    return trigger


def run(trigger: Any) -> TriggerEvent:
    async def first() -> TriggerEvent:
        async with aclosing(trigger.run()) as events:
            event: TriggerEvent = await anext(events)
            return event

    return asyncio.run(asyncio.wait_for(first(), 20))


def one(**given: Any) -> HorsiesOperator:
    with DAG("sales", schedule=None):
        return HorsiesOperator(
            **{"task_id": "one", "task_name": "add", "kwargs": {"day": "{{ ds }}"}, "worker_free": True, **given}
        )


def batch(days: list[Any], **given: Any) -> HorsiesBatchOperator:
    with DAG("sales", schedule=None):
        items = [{"day": day} for day in days]
        return HorsiesBatchOperator(task_id="one", task_name="add", items=items, worker_free=True, **given)


@pytest.mark.parametrize(("path", "fields"), STORED)
def test_what_is_stored_can_be_loaded_and_run(
    horsies: FakeHorsies, xcoms: dict[str, Any], path: str, fields: str
) -> None:
    arguments = SimpleNamespace(trigger_cls=path, trigger_kwargs={"fields": fields})
    trigger = start(SimpleNamespace(start_trigger_args=arguments), xcoms)
    assert trigger.serialize() == (path, {"fields": fields})
    assert isinstance(run(trigger), TaskSuccessEvent)


def test_success_ends_the_task_without_a_worker(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    event = run(start(one(), xcoms))
    assert isinstance(event, TaskSuccessEvent) and event.xcoms is None
    (sent,) = horsies.ledger.read_all_submissions()
    assert xcoms == {"return_value": {"sum": 3}, "horsies_task_id": sent.horsies_task_id, "link": "pushed"}
    assert horsies.sent("add") == [{"day": "2026-01-01"}]


def test_native_templates_give_values(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    with DAG("sales", schedule=None, render_template_as_native_obj=True):
        native = HorsiesOperator(
            task_id="one",
            task_name="add",
            kwargs="{{ {'a': 1, 'b': [ds]} }}",
            good_until="{{ none }}",
            worker_free=True,
        )
        items = HorsiesBatchOperator(
            task_id="many", task_name="add", items="{{ [{'a': 1}, {'a': 2}] }}", worker_free=True
        )
        sensor = HorsiesSensor(task_id="watch", task_ids="{{ [] }}", worker_free=True)
    for task in (native, items, sensor):
        assert isinstance(run(start(task, xcoms)), TaskSuccessEvent)
    assert horsies.sent("add") == [{"a": 1, "b": ["2026-01-01"]}, {"a": 1}, {"a": 2}]


def test_failure_resumes_the_operator_on_a_worker(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    horsies.fails("add", "BROKEN")
    event = run(start(one(), xcoms))
    assert not isinstance(event, TaskSuccessEvent)
    (sent,) = horsies.ledger.read_all_submissions()
    assert event.payload["reason"] == "ended"
    assert event.payload["task_ids"] == [sent.horsies_task_id]
    assert "return_value" not in xcoms


def test_redelivery_and_retry_reattach_and_a_clear_sends_again(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    for trigger in (start(one(), xcoms), start(one(), xcoms), start(one(), xcoms, trace="00-b", try_number=2)):
        assert isinstance(run(trigger), TaskSuccessEvent)
    submissions = horsies.ledger.read_all_submissions()
    assert [(each.life, each.try_number) for each in submissions] == [(1, 1), (2, 2)]


def test_redelivery_meets_the_failure_and_a_retry_sends_the_next_round(
    horsies: FakeHorsies, xcoms: dict[str, Any]
) -> None:
    horsies.fails("add", "BROKEN")
    first = run(start(one(), xcoms)).payload["task_ids"]
    assert run(start(one(), xcoms)).payload["task_ids"] == first
    assert run(start(one(), xcoms, try_number=2)).payload["task_ids"] != first
    submissions = horsies.ledger.read_all_submissions()
    assert [(each.life, each.round, each.try_number) for each in submissions] == [(1, 1, 1), (1, 2, 2)]


@pytest.mark.parametrize("make", [one, lambda: batch(["a"]), lambda: batch(["a"], chunk_size=2)])
@pytest.mark.parametrize("trace", ["00-a", "00-b"])
def test_value_of_a_trigger_that_a_later_try_has_left_behind_is_not_stored(
    horsies: FakeHorsies, xcoms: dict[str, Any], make: Any, trace: str
) -> None:
    silent = start(make(), xcoms)

    async def submit() -> None:
        await silent._start(await silent._client())

    asyncio.run(submit())
    assert isinstance(run(start(make(), xcoms, try_number=2, trace=trace)), TaskSuccessEvent)
    xcoms["return_value"] = "of the later try"
    assert not isinstance(run(silent), TaskSuccessEvent)
    assert xcoms["return_value"] == "of the later try"


def test_value_of_a_try_is_deleted_by_the_trigger_that_sent_its_task(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[Any] = []
    monkeypatch.setattr(starting, "delete_result", lambda ti: deleted.append(xcoms.pop("return_value")))
    xcoms["return_value"] = "of an earlier try"
    silent = start(one(), xcoms, try_number=2)
    run(start(one(), xcoms, try_number=2))
    assert deleted == ["of an earlier try"]

    async def submit() -> None:
        await silent._start(await silent._client())

    # Another triggerer has ended the try meanwhile.
    asyncio.run(submit())
    assert xcoms["return_value"] == {"sum": 3}


def test_without_a_trace_each_try_runs_again(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    run(start(one(), xcoms, trace=None))
    run(start(one(), xcoms, trace=None))
    assert len(horsies.ledger.read_all_submissions()) == 1
    later = start(one(), xcoms, trace=None, try_number=2)
    later.task_instance.id = "0199"
    run(later)
    assert len(horsies.ledger.read_all_submissions()) == 2


def test_batch_returns_its_values_in_order(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    assert isinstance(run(start(batch(["{{ ds }}", "b"]), xcoms)), TaskSuccessEvent)
    assert xcoms["return_value"] == [{"sum": 3}, {"sum": 3}]
    assert horsies.sent("add") == [{"day": "2026-01-01"}, {"day": "b"}]


def test_batch_may_have_failures(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    horsies.fails("add", "BROKEN")
    assert isinstance(run(start(batch(["a", "b"], max_failures=2), xcoms)), TaskSuccessEvent)
    assert xcoms["return_value"] == [None, None]
    event = run(start(batch(["a", "b"], max_failures=1), xcoms, try_number=2))
    assert event.payload["reason"] in ("ended", "decided")
    assert (event.payload["size"], event.payload["max_failures"]) == (2, 1)


def test_empty_batch_succeeds_at_once(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    assert isinstance(run(start(batch([]), xcoms)), TaskSuccessEvent)
    assert xcoms["return_value"] == []


def test_task_that_is_only_sent_returns_its_id(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    assert isinstance(run(start(one(wait_for_completion=False), xcoms)), TaskSuccessEvent)
    assert xcoms["return_value"] == xcoms["horsies_task_id"]


@pytest.mark.parametrize("text", ["{{ nothing_of_the_kind }}", "{{ 1 / 0 }}", "{{ broken"])
def test_error_in_a_template_is_left_to_a_worker(
    horsies: FakeHorsies, xcoms: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_horsies.operators.worker_free.explain_template", lambda *_: None)
    event = run(start(one(kwargs={"a": text}), xcoms))
    assert event.payload["reason"] == "not_started"
    assert not horsies.ledger.read_all_submissions()


@pytest.mark.parametrize(
    "given",
    [
        {"good_until": "{{ macros.secret }}"},
        {"kwargs": {"a": "{{ 1 / macros.secret }}"}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_secret_in_an_error_is_not_stored_with_the_event(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """Airflow stores events as they are."""
    monkeypatch.setattr("airflow_horsies.operators.worker_free.explain_template", lambda *_: None)
    secret = "postgresql://etl:swordfish@db/sales a1b2c3-of-a-connection"
    mask_secret("a1b2c3-of-a-connection")
    trigger = start(one(**given), xcoms)
    trigger.task_instance.get_template_context()["macros"] = SimpleNamespace(secret=secret)
    event = run(trigger)
    assert event.payload["reason"] == "not_started"
    assert not re.search("swordfish|a1b2c3", str(event.payload))


def test_lasting_error_before_the_submission_is_left_to_a_worker(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeAsyncClient, "submit_tasks", failing([SchemaMissing("no tables")]))
    event = run(start(one(), xcoms))
    assert (event.payload["reason"], event.payload["message"]) == ("not_started", "no tables")


def test_passing_error_is_waited_out(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "FIRST_RETRY_SECONDS", 0.01)
    submit = FakeAsyncClient.submit_tasks
    monkeypatch.setattr(FakeAsyncClient, "submit_tasks", failing([DatabaseUnreachable("away")], then=submit))
    assert isinstance(run(start(one(), xcoms)), TaskSuccessEvent)


def test_value_that_cannot_be_stored_is_left_to_a_worker(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("the XCom backend is away")

    monkeypatch.setattr(starting, "push_result", refuse)
    assert run(start(one(), xcoms)).payload["reason"] == "ended"
    assert run(start(one(wait_for_completion=False), xcoms)).payload["reason"] == "not_started"
    horsies.returns("add", "a\0b")
    monkeypatch.setattr(starting, "push_result", lambda *_: None)
    assert run(start(one(), xcoms, trace="00-c", try_number=2)).payload["reason"] == "ended"


def test_time_out_is_that_of_airflow(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    horsies.never_ends("add")
    over = datetime.now(UTC) + timedelta(seconds=0.3)
    event = run(start(one(execution_timeout=timedelta(seconds=0.3)), xcoms, timeout_after=over))
    assert event.payload["reason"] == "timed_out"
    assert event.payload["deadline"] == over.isoformat()


def test_event_loop_goes_on_while_templates_and_values_take_long(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def slow(*_: Any) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.4)

    monkeypatch.setattr(starting, "push_result", slow)
    monkeypatch.setattr(starting.ATTEMPTS_LINK, "push", slow, raising=False)
    pauses: list[float] = []

    async def watch() -> None:
        async def tick() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                pauses.append(time.monotonic() - before)

        ticking = asyncio.create_task(tick())
        async with aclosing(start(one(), xcoms).run()) as events:
            await anext(events)
        ticking.cancel()

    asyncio.run(watch())
    assert len(threads) >= 1 and threading.get_ident() not in threads
    assert len(pauses) > 10


@pytest.mark.parametrize(("state", "cancelled"), [(None, True), ("failed", True), ("deferred", False)])
def test_kill_cancels_only_on_the_wish_of_a_person(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, state: str | None, cancelled: bool
) -> None:
    horsies.never_ends("add")
    monkeypatch.setattr(base, "read_state_async", answering(state))
    trigger = start(one(), xcoms)

    async def kill() -> None:
        client = await trigger._client()
        trigger._waiting = await trigger._start(client)
        await trigger.on_kill()

    asyncio.run(kill())
    (sent,) = horsies.ledger.read_all_submissions()
    expected = TaskState.CANCELLED if cancelled else TaskState.RUNNING
    assert horsies.memory.read_task(sent.horsies_task_id).state is expected


def test_kill_while_submitting_cancels_what_this_try_sent(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    horsies.never_ends("add")
    monkeypatch.setattr(base, "read_state_async", answering(None))
    first = start(one(), xcoms)

    async def kill() -> None:
        await first._start(await first._client())
        second = start(one(), xcoms, trace="00-b", try_number=2)
        await second._start(await second._client())
        # As if it had been cancelled before it knew what it sent.
        first._waiting = None
        await first.on_kill()

    asyncio.run(kill())
    states = [horsies.memory.read_task(each.horsies_task_id).state for each in horsies.ledger.read_all_submissions()]
    assert states == [TaskState.CANCELLED, TaskState.RUNNING]


def test_kill_waits_for_a_submission_that_it_cannot_interrupt(
    horsies: FakeHorsies, xcoms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    horsies.never_ends("add")
    monkeypatch.setattr(base, "read_state_async", answering("failed"))
    submit = FakeAsyncClient.submit_tasks

    async def main() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def submit_in_a_thread(*given: Any) -> Any:
            begun.set()
            await goes_on.wait()
            return await submit(*given)

        monkeypatch.setattr(FakeAsyncClient, "submit_tasks", submit_in_a_thread)
        trigger = start(one(), xcoms)
        running = asyncio.create_task(trigger._start(await trigger._client()))
        await begun.wait()
        running.cancel()
        await asyncio.wait({running})
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0.01)
        goes_on.set()
        await asyncio.wait_for(killing, 20)

    asyncio.run(main())
    (sent,) = horsies.ledger.read_all_submissions()
    assert horsies.memory.read_task(sent.horsies_task_id).state is TaskState.CANCELLED


def test_sensor_ends_when_the_tasks_have_ended(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    run(start(one(), xcoms))
    (sent,) = horsies.ledger.read_all_submissions()
    with DAG("sales", schedule=None):
        by_id = HorsiesSensor(task_id="a", task_ids=[sent.horsies_task_id], worker_free=True)
        by_instance = HorsiesSensor(
            task_id="b", external_dag_id="sales", external_task_id="one", poke_interval=1, worker_free=True
        )
        failing_one = HorsiesSensor(
            task_id="c", task_ids=sent.horsies_task_id, allowed_states=["FAILED"], worker_free=True
        )
    over = datetime.now(UTC) + timedelta(seconds=90)
    assert isinstance(run(start(by_id, xcoms, timeout_after=over)), TaskSuccessEvent)
    assert isinstance(run(start(by_instance, xcoms, timeout_after=over)), TaskSuccessEvent)
    event = run(start(failing_one, xcoms, timeout_after=over))
    assert event.payload["reason"] == "decided"
    assert event.payload["deadline"] == (over - timedelta(seconds=60)).isoformat()


def month(**given: Any) -> HorsiesWorkflowOperator:
    with DAG("sales", schedule=None):
        return HorsiesWorkflowOperator(
            task_id="one", workflow="flights.month", kwargs={"day": "{{ ds }}"}, worker_free=True, **given
        )


def graph(**given: Any) -> HorsiesGraphOperator:
    with DAG("sales", schedule=None):
        return HorsiesGraphOperator(
            task_id="one", nodes={"load": node("add", day="{{ ds }}")}, output="load", worker_free=True, **given
        )


@pytest.mark.parametrize("make", [month, graph])
def test_workflow_ends_the_task_without_a_worker(horsies: FakeHorsies, xcoms: dict[str, Any], make: Any) -> None:
    name = "flights.month" if make is month else "one"
    horsies.workflow_returns(name, 7)
    assert isinstance(run(start(make(), xcoms)), TaskSuccessEvent)
    (workflow_id,) = horsies.memory.sent
    assert xcoms == {"return_value": 7, "horsies_workflow_id": workflow_id, "link": "pushed"}
    (sent,) = horsies.graphs(name)
    assert {"day": "2026-01-01"} in [known.kwargs for known in sent.nodes.values()]


def test_workflow_that_is_paused_or_fails_goes_on_with_a_worker(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    horsies.workflow_is_paused("flights.month")
    event = run(start(month(on_paused="fail"), xcoms))
    assert (event.payload["reason"], event.payload["on_paused"]) == ("paused", "fail")
    horsies.workflow_fails("flights.month", "BROKEN")
    event = run(start(month(), xcoms, try_number=2))
    assert event.payload["reason"] == "ended" and "return_value" not in xcoms


def test_workflow_sensor_ends_when_the_workflow_has_completed(horsies: FakeHorsies, xcoms: dict[str, Any]) -> None:
    horsies.workflow_returns("flights.month", 7)
    run(start(month(), xcoms))
    with DAG("sales", schedule=None):
        sensor = HorsiesWorkflowSensor(
            task_id="wait", external_dag_id="sales", external_task_id="one", worker_free=True, poke_interval=1
        )
    assert isinstance(run(start(sensor, xcoms)), TaskSuccessEvent)
