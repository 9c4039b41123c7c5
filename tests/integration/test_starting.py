"""Tasks that start in the triggerer, on real databases: whatever comes again or is cleared, the right task is sent."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_horsies.client import async_client
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import StaleSubmission
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, SubmitOutcome, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator, starting
from tests.integration.asynchronous import ask
from tests.integration.chunk_rig import start as begin
from tests.integration.releases import MOVED
from tests.integration.test_submit import end_task
from tests.integration.test_triggers import CONN_ID, store_connection

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED
COMPLETED, FAILED = TaskState.COMPLETED, TaskState.FAILED
# A triggerer that is killed right after its submission.
KILLED = """
import asyncio, os, signal, sys
from tests.integration.test_starting import start, one
async def main():
    trigger = start(one(), {})
    await trigger._start(await trigger._client())
    print("sent", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

on_one_release = pytest.mark.parametrize("release", [MOVED], indirect=True)


def spec(a: int) -> TaskSpec:
    return TaskSpec(task_name="add", kwargs={"a": a, "b": 0})


def traced(number: int = 1, trace: str = "trace a", **more: Any) -> AirflowTry:
    return AirflowTry(**{"try_number": number, "run_started_at": NOON, "run_key": trace, "trace_key": trace, **more})


def of_worker(number: int, **more: Any) -> AirflowTry:
    return AirflowTry(**{"try_number": number, "run_started_at": NOON, "run_key": "a run", "max_tries": 2, **more})


@pytest.mark.parametrize(
    ("later", "when_live", "when_completed"),
    [
        (traced(1), REATTACHED, ADOPTED),
        (traced(1, run_started_at=NOON + timedelta(hours=1)), REATTACHED, ADOPTED),
        # A retry, or a clear that does not reset the run.
        (traced(2), REATTACHED, SENT),
        (traced(2, "trace b"), SENT, SENT),
        (traced(1, "trace b", run_started_at=NOON + timedelta(hours=1)), SENT, SENT),
        # The author has changed the mode.
        (of_worker(2, trace_key="trace a"), REATTACHED, SENT),
        (of_worker(2, trace_key="trace b", clear_number=1), SENT, SENT),
        (of_worker(2), SENT, SENT),
    ],
)
@pytest.mark.parametrize("state", [None, COMPLETED])
def test_a_clear_runs_again_and_a_retry_does_not(
    hook: HorsiesHook,
    release: str,
    later: AirflowTry,
    when_live: SubmitOutcome,
    when_completed: SubmitOutcome,
    state: TaskState | None,
) -> None:
    (first,) = asyncio.run(ask(hook, "submit_tasks", [spec(1)], INSTANCE, traced()))
    if state is not None:
        end_task(hook, first.task_id, state, release)
    again = hook.submit_task(spec(1), INSTANCE, later)
    assert again.outcome is (when_completed if state else when_live)
    assert (again.task_id != first.task_id) == (again.outcome is SENT)
    if again.outcome is SENT and state is None:
        assert hook.read_task(first.task_id).state is TaskState.CANCELLED


@on_one_release
def test_mode_of_the_other_side_runs_again(hook: HorsiesHook) -> None:
    first = hook.submit_task(spec(1), INSTANCE, of_worker(1, trace_key="trace a"))
    again = hook.submit_task(spec(1), INSTANCE, traced(2))
    assert (again.outcome, again.life) == (SENT, 2)
    assert hook.read_task(first.task_id).state is TaskState.CANCELLED


@on_one_release
@pytest.mark.parametrize(
    "left_behind", [traced(1), traced(1, "trace b"), traced(5, "trace b", run_started_at=NOON - timedelta(days=1))]
)
def test_a_triggerer_that_was_left_behind_submits_nothing(hook: HorsiesHook, left_behind: AirflowTry) -> None:
    hook.submit_task(spec(1), INSTANCE, traced(2))
    with pytest.raises(StaleSubmission):
        hook.submit_task(spec(1), INSTANCE, left_behind)


def test_retry_of_a_batch_adopts_what_completed(hook: HorsiesHook, release: str) -> None:
    specs = [spec(number) for number in range(3)]
    first = hook.submit_tasks(specs, INSTANCE, traced())
    for result, state in zip(first, (COMPLETED, FAILED, COMPLETED), strict=True):
        end_task(hook, result.task_id, state, release)
    again = hook.submit_tasks(specs, INSTANCE, traced(2))
    assert [result.outcome for result in again] == [ADOPTED, SENT, ADOPTED]
    assert {result.life for result in again} == {1}
    cleared = hook.submit_tasks(specs, INSTANCE, traced(3, "trace b"))
    assert [result.outcome for result in cleared] == [SENT, SENT, SENT]


@on_one_release
def test_a_large_batch_is_the_same_in_a_thread(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [spec(number) for number in range(20)]
    small = asyncio.run(ask(hook, "submit_tasks", specs, INSTANCE, traced()))
    monkeypatch.setattr(async_client, "MAX_TASKS_ON_LOOP", 5)
    again = asyncio.run(ask(hook, "submit_tasks", specs, INSTANCE, traced()))
    assert [result.task_id for result in again] == [result.task_id for result in small]
    assert {result.outcome for result in again} == {REATTACHED}
    other = asyncio.run(ask(hook, "submit_tasks", specs, replace(INSTANCE, task_id="other"), traced()))
    assert {result.outcome for result in other} == {SENT}
    found = asyncio.run(ask(hook, "read_tasks", [result.task_id for result in other]))
    assert [found[result.task_id].kwargs for result in other] == [item.kwargs for item in specs]


# -- the trigger -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> dict[str, Any]:
    """The connection in Airflow, and the XComs."""
    store_connection(monkeypatch, postgres, database)
    xcoms: dict[str, Any] = {}
    monkeypatch.setattr(starting, "push_result", lambda ti, value, log: xcoms.update(return_value=value))
    return xcoms


def one(**given: Any) -> HorsiesOperator:
    with DAG("sales", schedule=None):
        return HorsiesOperator(
            **{
                "task_id": "load",
                "task_name": "add",
                "kwargs": {"a": "{{ ds }}"},
                "horsies_conn_id": CONN_ID,
                "worker_free": True,
                **given,
            }
        )


def start(task: Any, xcoms: dict[str, Any], *, try_number: int = 1, trace: str = "a") -> Any:
    """The trigger of a task, as a triggerer creates it."""
    arguments = task.start_trigger_args
    trigger = resolve_name(arguments.trigger_cls)(**arguments.trigger_kwargs)
    ti = SimpleNamespace(
        **{"id": "0198", "dag_id": "sales", "run_id": "manual__1", "task_id": "load", "map_index": -1},
        try_number=try_number,
        context_carrier={"traceparent": trace},
        task=SimpleNamespace(),
    )
    ti.xcom_push = lambda key, value: xcoms.update({key: value})
    context = {"ti": ti, "dag_run": SimpleNamespace(start_date=NOON), "dag": None, "ds": "2026-01-01"}
    ti.get_template_context = lambda: context
    trigger._task_instance = ti
    trigger._log = logging.getLogger("the trigger")
    return trigger


async def first_event(trigger: Any) -> TriggerEvent:
    async with aclosing(trigger.run()) as events:
        event: TriggerEvent = await anext(events)
        return event


@on_one_release
def test_trigger_sends_waits_and_ends_the_task(hook: HorsiesHook, release: str, stored: dict[str, Any]) -> None:
    async def main() -> TriggerEvent:
        event = asyncio.create_task(first_event(start(one(), stored)))
        while not (sent := hook.read_submissions(INSTANCE)):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(end_task, hook, sent[0].horsies_task_id, COMPLETED, release)
        return await asyncio.wait_for(event, 30)

    assert isinstance(asyncio.run(main()), TaskSuccessEvent)
    (sent,) = hook.read_submissions(INSTANCE)
    assert stored == {"return_value": 1, "horsies_task_id": sent.horsies_task_id}


@on_one_release
@pytest.mark.parametrize("is_running", [False, True])
def test_clear_of_a_task_that_is_only_sent_sends_it_again(
    hook: HorsiesHook, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    """A clear that does not reset the run leaves the trace as it is. Nothing has cancelled what was sent."""
    monkeypatch.setattr(starting, "delete_result", lambda ti: None)
    task = one(wait_for_completion=False)
    assert isinstance(asyncio.run(first_event(start(task, stored))), TaskSuccessEvent)
    first = stored["return_value"]
    if is_running:
        begin(hook, first)
    assert isinstance(asyncio.run(first_event(start(task, stored, try_number=2))), TaskSuccessEvent)
    again = stored["return_value"]
    assert again != first
    states = hook.read_states([first, again])
    assert states == {first: TaskState.CANCELLED, again: TaskState.PENDING}
    # Another triggerer takes the try over.
    assert isinstance(asyncio.run(first_event(start(task, stored, try_number=2))), TaskSuccessEvent)
    assert stored["return_value"] == again


@on_one_release
def test_another_triggerer_takes_over_from_one_that_was_killed(
    hook: HorsiesHook, release: str, stored: dict[str, Any]
) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as triggerer:
        assert triggerer.stdout is not None
        assert any("sent" in line for line in triggerer.stdout)
        triggerer.send_signal(signal.SIGKILL)
    (sent,) = hook.read_submissions(INSTANCE)
    end_task(hook, sent.horsies_task_id, FAILED, release)
    event = asyncio.run(asyncio.wait_for(first_event(start(one(), stored)), 30))
    # The same try meets the failure that it waited for, and sends no other task.
    assert event.payload["task_ids"] == [sent.horsies_task_id]
    assert len(hook.read_submissions(INSTANCE)) == 1


@on_one_release
def test_database_that_restarts_while_the_trigger_submits_is_waited_for(
    hook: HorsiesHook, release: str, stored: dict[str, Any], postgres: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(**postgres.conninfo(database)) as blocker:
        hook.submit_task(spec(9), replace(INSTANCE, task_id="other"), traced())
        blocker.execute("LOCK TABLE airflow_horsies.submissions IN ACCESS EXCLUSIVE MODE")

        async def main() -> TriggerEvent:
            event = asyncio.create_task(first_event(start(one(wait_for_completion=False), stored)))
            await asyncio.sleep(1)
            before = time.monotonic()
            await asyncio.sleep(0)
            # A locked table does not block the loop.
            assert time.monotonic() - before < 0.5
            blocker.rollback()
            return await asyncio.wait_for(event, 60)

        assert isinstance(asyncio.run(main()), TaskSuccessEvent)
    assert len(hook.read_submissions(INSTANCE)) == 1


@on_one_release
def test_batch_ends_with_its_values(hook: HorsiesHook, release: str, stored: dict[str, Any]) -> None:
    with DAG("sales", schedule=None):
        batch = HorsiesBatchOperator(
            task_id="load",
            task_name="add",
            items=[{"a": number} for number in range(3)],
            max_failures=1,
            horsies_conn_id=CONN_ID,
            worker_free=True,
        )

    async def main() -> TriggerEvent:
        event = asyncio.create_task(first_event(start(batch, stored)))
        while len(sent := hook.read_submissions(INSTANCE)) < 3:
            await asyncio.sleep(0.05)
        for each, state in zip(sent, (COMPLETED, FAILED, COMPLETED), strict=True):
            await asyncio.to_thread(end_task, hook, each.horsies_task_id, state, release)
        return await asyncio.wait_for(event, 30)

    assert isinstance(asyncio.run(main()), TaskSuccessEvent)
    assert stored["return_value"] == [1, None, 1]
