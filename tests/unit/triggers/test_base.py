from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner

from airflow_horsies.exceptions import (
    AccessDenied,
    DatabaseBusy,
    DatabaseUnreachable,
    HorsiesError,
    SchemaMissing,
    TaskNotFound,
)
from airflow_horsies.models import TaskState
from airflow_horsies.testing import FakeAsyncClient, FakeHorsies
from airflow_horsies.testing.async_client import FakeWaiter
from airflow_horsies.triggers import (
    HorsiesBatchTrigger,
    HorsiesQueueTrigger,
    HorsiesSensorTrigger,
    HorsiesSubmissionTrigger,
    HorsiesTrigger,
    base,
)
from tests.unit.fakes import failing
from tests.unit.triggers.rig import (
    DEADLINE,
    ID,
    INSTANCE,
    OTHER_ID,
    answering,
    deferred_now,
    put_lines,
    put_states,
    run,
    soon,
)

pytestmark = pytest.mark.usefixtures("horsies")

KNOWN = {"namespace": None, "horsies_conn_id": "horsies_default", "deadline": None}
# What stands in Airflow's database while tasks wait. Never change an entry: add one for each new form.
STORED: list[tuple[str, dict[str, Any]]] = [
    (
        "airflow_horsies.triggers.HorsiesTrigger",
        {
            "task_ids": [ID],
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
            "queue_deadline": None,
            "cancel_on_kill": True,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesBatchTrigger",
        {
            "task_instance": INSTANCE,
            "life": 1,
            "max_failures": 3,
            "horsies_conn_id": "horsies_default",
            "deadline": None,
            "queue_deadline": DEADLINE,
            "cancel_on_kill": False,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesTrigger",
        {
            "task_ids": [ID],
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
            "queue_deadline": None,
            "cancel_on_kill": True,
            "seen": {ID: [2, 17]},
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesBatchTrigger",
        {
            "task_instance": INSTANCE,
            "life": 1,
            "max_failures": 3,
            "horsies_conn_id": "horsies_default",
            "deadline": None,
            "queue_deadline": DEADLINE,
            "cancel_on_kill": False,
            "seen": {},
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesSensorTrigger",
        {
            "task_ids": [ID, OTHER_ID],
            "failed_states": ["CANCELLED", "EXPIRED", "FAILED"],
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesSubmissionTrigger",
        {
            "task_instance": INSTANCE,
            "allowed_states": ["COMPLETED"],
            "failed_states": ["FAILED"],
            "poll_seconds": 60.0,
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesQueueTrigger",
        {
            "queue": "spark",
            "min_workers": 1,
            "max_depth": 100,
            "poll_seconds": 60.0,
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesWorkflowTrigger",
        {
            "workflow_id": ID,
            "task_instance": INSTANCE,
            "life": 2,
            "on_paused": "fail",
            "is_paused": False,
            "shown": ["0", "1.2"],
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
            "queue_deadline": None,
            "cancel_on_kill": True,
            "namespace": "prod",
            "seen": {OTHER_ID: [1, 7]},
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesWorkflowSensorTrigger",
        {
            "workflow_ids": [ID, OTHER_ID],
            "failed_states": ["CANCELLED", "EXPIRED", "FAILED"],
            "on_paused": "wait",
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
        },
    ),
    (
        "airflow_horsies.triggers.HorsiesWorkflowSubmissionTrigger",
        {
            "task_instance": INSTANCE,
            "allowed_states": ["COMPLETED"],
            "failed_states": ["FAILED"],
            "poll_seconds": 60.0,
            "horsies_conn_id": "horsies_default",
            "deadline": DEADLINE,
            "on_paused": "fail",
        },
    ),
]
# Every form, with the time of the deferral.
STORED += [(path, {**kwargs, "deferred_at": "2026-01-01T11:00:00+00:00"}) for path, kwargs in STORED]


@pytest.mark.parametrize(("path", "kwargs"), STORED, ids=[path.rpartition(".")[2] for path, _ in STORED])
def test_stored_trigger_still_loads_and_stores_itself_the_same(path: str, kwargs: dict[str, Any]) -> None:
    loaded = resolve_name(path)(**json.loads(json.dumps(kwargs)))
    assert loaded.serialize() == (path, kwargs)
    assert loaded.cancel_on_kill is kwargs.get("cancel_on_kill", False)


@pytest.mark.parametrize(
    "trigger",
    [
        HorsiesTrigger(task_ids=[ID]),
        HorsiesTrigger(task_ids=[ID], seen={ID: [1, 2]}),
        HorsiesBatchTrigger(task_instance=INSTANCE, life=2),
        HorsiesSensorTrigger(task_ids=[ID], failed_states={TaskState.FAILED}),
        HorsiesSubmissionTrigger(task_instance=INSTANCE, allowed_states={TaskState.COMPLETED}),
        HorsiesQueueTrigger(queue="spark"),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_trigger_survives_json(trigger: HorsiesTrigger) -> None:
    path, kwargs = trigger.serialize()
    assert resolve_name(path) is type(trigger)
    assert resolve_name(path)(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)


def test_event_says_why_it_fired_and_for_which_tasks(horsies: FakeHorsies) -> None:
    put_states(horsies, {ID: TaskState.FAILED})
    event = run(HorsiesTrigger(task_ids=[ID]))
    assert event == {"reason": "ended", "message": None, "task_ids": [ID], **KNOWN}
    assert json.loads(json.dumps(event)) == event


@pytest.mark.parametrize(
    ("trigger", "state", "reason"),
    [
        (HorsiesTrigger(task_ids=[ID]), TaskState.COMPLETED, "ended"),
        (HorsiesTrigger(task_ids=[ID], deadline=DEADLINE), TaskState.RUNNING, "timed_out"),
        (HorsiesTrigger(task_ids=["not an id"]), TaskState.RUNNING, "error"),
        (HorsiesBatchTrigger(task_instance=INSTANCE, life=1), TaskState.RUNNING, "not_found"),
        (HorsiesSensorTrigger(task_ids=[ID]), TaskState.FAILED, "ended"),
        (HorsiesSubmissionTrigger(task_instance=INSTANCE, deadline=DEADLINE), TaskState.RUNNING, "timed_out"),
        (HorsiesQueueTrigger(queue="spark", deadline=DEADLINE), TaskState.RUNNING, "timed_out"),
    ],
    ids=["ended", "timed out", "error", "batch", "sensor", "submission", "queue"],
)
def test_event_soon_after_the_deferral_is_held_back(
    horsies: FakeHorsies, trigger: HorsiesTrigger, state: TaskState, reason: str, short_hold: float
) -> None:
    put_states(horsies, {ID: state})
    horsies.queue("spark", workers=0)
    begun = time.monotonic()
    event = run(deferred_now(trigger))
    assert event["reason"] == reason
    assert 0 < event["held_seconds"] <= time.monotonic() - begun
    assert time.monotonic() - begun > short_hold - 0.1


def test_event_is_not_held_where_no_triggerer_runs_the_trigger(horsies: FakeHorsies, short_hold: float) -> None:
    put_states(horsies, {ID: TaskState.COMPLETED})
    assert "held_seconds" not in run(deferred_now(HorsiesTrigger(task_ids=[ID]), trigger_id=None))


def test_event_of_a_task_that_outlasted_the_hold_comes_at_once(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__RESUME_HOLD_SECONDS", "0.005")
    put_states(horsies, {ID: TaskState.COMPLETED})
    news = FakeWaiter.news

    async def slow_news(waiter: FakeWaiter, **until: Any) -> None:
        await asyncio.sleep(0.01)
        await news(waiter, **until)

    monkeypatch.setattr(FakeWaiter, "news", slow_news)
    assert "held_seconds" not in run(deferred_now(HorsiesTrigger(task_ids=[ID])))


@pytest.mark.parametrize("reaches_triggers", [True, False], ids=["on_kill", "by cancellation alone"])
def test_kill_reaches_a_trigger_that_holds_its_event(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, released: list[str], reaches_triggers: bool
) -> None:
    monkeypatch.setattr(base, "KILL_REACHES_TRIGGERS", reaches_triggers)
    put_states(horsies, {ID: TaskState.COMPLETED})
    trigger = deferred_now(HorsiesTrigger(task_ids=[ID], task_instance=INSTANCE))
    fired: list[Any] = []

    async def triggerer() -> None:
        async for event in trigger.run():
            fired.append(event)

    async def drive() -> None:
        task = asyncio.create_task(triggerer())
        await asyncio.sleep(0.2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if reaches_triggers:
            await trigger.on_kill()

    monkeypatch.setattr(base, "read_state_async", answering("failed"))
    begun = time.monotonic()
    asyncio.run(drive())
    assert time.monotonic() - begun < 5
    assert (released, fired) == ([ID], [])


def test_what_tasks_write_is_shown_and_the_event_says_how_far(
    horsies: FakeHorsies, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    put_states(horsies, {ID: TaskState.COMPLETED})
    put_lines(horsies, ID, 3, 4, 5)
    event = run(HorsiesTrigger(task_ids=[ID], seen={ID: [1, 3]}))
    assert event == {"reason": "ended", "message": None, "task_ids": [ID], "seen": {ID: [1, 5]}, **KNOWN}
    assert caplog.messages == ["[attempt 1] line 4", "[attempt 1] line 5"]


def test_trigger_that_was_not_told_to_show_logs_shows_none(
    horsies: FakeHorsies, caplog: pytest.LogCaptureFixture
) -> None:
    put_states(horsies, {ID: TaskState.COMPLETED})
    put_lines(horsies, ID, 1)
    assert "seen" not in run(HorsiesTrigger(task_ids=[ID]))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("state", "errors", "reason"),
    [
        (None, [], "not_found"),
        (TaskState.RUNNING, [TaskNotFound("it is gone", task_id=ID)], "not_found"),
        (TaskState.RUNNING, [SchemaMissing("no tables")], "error"),
        (TaskState.RUNNING, [], "timed_out"),
    ],
    ids=["task is absent", "TaskNotFound", "other error", "nothing happens"],
)
def test_every_way_not_to_end_has_a_reason(
    horsies: FakeHorsies,
    monkeypatch: pytest.MonkeyPatch,
    state: TaskState | None,
    errors: list[HorsiesError],
    reason: str,
) -> None:
    put_states(horsies, {ID: state})
    monkeypatch.setattr(FakeAsyncClient, "subscribe", failing(errors, then=FakeAsyncClient.subscribe))
    assert run(HorsiesTrigger(task_ids=[ID], deadline=soon()))["reason"] == reason


def test_trigger_waits_until_its_deadline(patience: None) -> None:
    begun = time.monotonic()
    assert run(HorsiesTrigger(task_ids=[ID], deadline=soon(0.4)))["reason"] == "timed_out"
    assert time.monotonic() - begun > 0.3


@pytest.mark.parametrize("error", [DatabaseUnreachable("starting up"), DatabaseBusy("locked"), AccessDenied("not yet")])
def test_database_that_is_away_for_a_moment_is_asked_again(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, error: HorsiesError
) -> None:
    monkeypatch.setattr(base, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(FakeAsyncClient, "subscribe", failing([error], then=FakeAsyncClient.subscribe))
    put_states(horsies, {ID: TaskState.COMPLETED})
    assert run(HorsiesTrigger(task_ids=[ID], deadline=soon(60)))["reason"] == "ended"


def test_access_that_stays_denied_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(base, "ACCESS_SECONDS", 0.0)
    errors = [AccessDenied("not you"), AccessDenied("still not you")]
    monkeypatch.setattr(FakeAsyncClient, "subscribe", failing(errors))
    event = run(HorsiesTrigger(task_ids=[ID]))
    assert (event["reason"], event["message"]) == ("error", "still not you")


def test_database_that_stays_away_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeAsyncClient, "subscribe", failing([DatabaseUnreachable("gone for good")]))
    deadline = soon(-1)
    event = run(HorsiesTrigger(task_ids=[ID], deadline=deadline))
    known = {**KNOWN, "deadline": deadline}
    assert event == {"reason": "timed_out", "message": "gone for good", "task_ids": [ID], **known}


@pytest.mark.parametrize(
    ("trigger", "cancelled"),
    [
        (HorsiesTrigger(task_ids=[ID], task_instance=INSTANCE), [ID]),
        (HorsiesTrigger(task_ids=[ID], task_instance=INSTANCE, cancel_on_kill=False), []),
        (HorsiesSensorTrigger(task_ids=[ID]), []),
    ],
    ids=["the operator's", "told not to", "the sensor's"],
)
def test_kill_cancels_what_is_ours(
    trigger: HorsiesTrigger, cancelled: list[str], monkeypatch: pytest.MonkeyPatch, horsies: FakeHorsies
) -> None:
    monkeypatch.setattr(base, "read_state_async", answering("failed"))
    asyncio.run(trigger.on_kill())
    states = {task_id: task.state for task_id, task in horsies.memory.tasks.items()}
    assert [task_id for task_id, state in states.items() if state is TaskState.CANCELLED] == cancelled


@pytest.mark.parametrize("reaches_triggers", [True, False], ids=["on_kill", "by cancellation alone"])
def test_kill_is_done_to_its_end_though_airflow_repeats_the_cancellation(
    monkeypatch: pytest.MonkeyPatch, patience: None, released: list[str], reaches_triggers: bool
) -> None:
    trigger = HorsiesTrigger(task_ids=[ID], task_instance=INSTANCE)
    monkeypatch.setattr(base, "KILL_REACHES_TRIGGERS", reaches_triggers)

    async def find_slowly(client: object) -> list[str]:
        await asyncio.sleep(0.2)
        return [ID]

    async def triggerer() -> None:
        async for _ in trigger.run():
            pass

    async def drive() -> None:
        task = asyncio.create_task(trigger.on_kill() if reaches_triggers else triggerer())
        while not task.done():
            await asyncio.sleep(0.05)
            task.cancel()

    monkeypatch.setattr(base, "read_state_async", answering("failed", after=0.2))
    monkeypatch.setattr(trigger, "_find_task_ids", find_slowly)
    asyncio.run(drive())
    assert released == [ID]


@pytest.mark.parametrize("kill_seconds", [5.0, 0.0], ids=["in time", "in the background"])
def test_kill_is_tried_until_the_database_is_back(
    monkeypatch: pytest.MonkeyPatch, released: list[str], kill_seconds: float
) -> None:
    trigger = HorsiesTrigger(task_ids=[ID], task_instance=INSTANCE)
    trigger._log = logging.getLogger("the trigger")
    away = [DatabaseUnreachable("gone")] * 3
    monkeypatch.setattr(FakeAsyncClient, "release_tasks", failing(away, then=FakeAsyncClient.release_tasks))
    monkeypatch.setattr(base, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(base, "KILL_SECONDS", kill_seconds)
    monkeypatch.setattr(base, "read_state_async", answering("failed"))

    async def drive() -> None:
        await trigger.on_kill()
        while base._unfinished:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(drive(), 10))
    assert released == [ID]


@pytest.mark.parametrize("map_index", [-1, 2], ids=["one", "mapped"])
@pytest.mark.parametrize(
    ("state", "cancelled"),
    [
        ("deferred", []),
        ("scheduled", []),
        ("running", []),
        ("up_for_retry", []),
        ("failed", [ID]),
        ("success", [ID]),
        (None, [ID]),
        ("absent", [ID]),
        ("unknown", []),
    ],
    ids=str,
)
@pytest.mark.parametrize("reaches_triggers", [True, False], ids=["on_kill", "by cancellation alone"])
@pytest.mark.parametrize("cancel_on_kill", [True, False], ids=["cancels", "does not cancel"])
def test_only_a_task_instance_that_nobody_waits_for_any_more_is_a_kill(
    monkeypatch: pytest.MonkeyPatch,
    patience: None,
    released: list[str],
    map_index: int,
    state: str | None,
    cancelled: list[str],
    reaches_triggers: bool,
    cancel_on_kill: bool,
) -> None:
    class Supervisor:
        async def asend(self, question: Any) -> Any:
            assert (question.task_ids, question.run_ids, question.map_index) == (["wait"], ["today"], map_index)
            # As Airflow's execution API names them.
            name = "wait" if map_index < 0 else f"wait_{map_index}"
            if state == "unknown":
                return SimpleNamespace(error="gone")
            return SimpleNamespace(task_states={} if state == "absent" else {"today": {name: state}})

    trigger = HorsiesTrigger(task_ids=[ID], cancel_on_kill=cancel_on_kill)
    monkeypatch.setattr(base, "KILL_REACHES_TRIGGERS", reaches_triggers)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
    monkeypatch.setattr(base, "ASK_SECONDS", 0.0)
    trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
        dag_id="a_dag", run_id="today", task_id="wait", map_index=map_index
    )

    async def drive() -> None:
        task = asyncio.create_task(anext(aiter(trigger.run())))
        await asyncio.sleep(0.05)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if reaches_triggers:
            assert released == []
            await trigger.on_kill()

    asyncio.run(drive())
    assert released == (cancelled if cancel_on_kill else [])
