"""Batches that start in the triggerer, on a real database: they are sent, counted and read by item, as on a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_horsies.client import async_client
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.core.batch import SubmittedBatch
from airflow_horsies.exceptions import BatchFailed, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, SubmitOutcome, TaskState
from airflow_horsies.operators import HorsiesBatchOperator, starting
from tests.integration import chunk_rig as rig
from tests.integration.asynchronous import ask
from tests.integration.releases import MOVED
from tests.integration.test_chunk_changes import put_worker
from tests.integration.test_starting import INSTANCE, first_event, start, stored, traced
from tests.integration.test_submit import end_task
from tests.integration.test_triggers import CONN_ID

__all__ = ["stored"]

SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED
KEPT = SubmitOutcome.KEPT
COMPLETED, FAILED = TaskState.COMPLETED, TaskState.FAILED

pytestmark = [pytest.mark.usefixtures("release"), pytest.mark.parametrize("release", [MOVED], indirect=True)]


@pytest.fixture(autouse=True)
def no_earlier_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "delete_result", lambda ti: None)


def batch(size: int = 6, **given: Any) -> HorsiesBatchOperator:
    items = [{"a": number} for number in range(size)]
    with DAG("sales", schedule=None):
        return HorsiesBatchOperator(
            **{
                **{"task_id": "load", "task_name": "add", "items": items, "chunk_size": 2},
                **{"horsies_conn_id": CONN_ID, "worker_free": True, **given},
            }
        )


def live(hook: HorsiesHook) -> list[str]:
    sent = hook.read_submissions(INSTANCE)
    return [one.horsies_task_id for one in sent if not hook.read_task(one.horsies_task_id).state.is_terminal]


def end_all(hook: HorsiesHook, *failing: int) -> None:
    for task_id in live(hook):
        task = hook.read_task(task_id)
        if task.task_name.endswith("[]"):
            rig.run(hook, task_id, *failing)
        else:
            end_task(hook, task_id, FAILED if (task.kwargs or {})["a"] in failing else COMPLETED, MOVED)


def run(hook: HorsiesHook, trigger: Any, *failing: int) -> TriggerEvent:
    """The event of a trigger whose tasks run on a worker."""

    async def main() -> TriggerEvent:
        event = asyncio.create_task(first_event(trigger))
        while not event.done() and not await asyncio.to_thread(live, hook):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(end_all, hook, *failing)
        return await asyncio.wait_for(event, 30)

    return asyncio.run(main())


def submit(
    hook: HorsiesHook, numbers: Iterable[int], at: AirflowTry, chunk_size: int | None = 2, **more: Any
) -> SubmittedBatch:
    return hook.client.submit_batch(rig.batch(numbers, chunk_size), INSTANCE, at, **more)


@pytest.mark.parametrize(
    ("given", "failing", "expected"),
    [
        ({}, [], [0, 10, 20, 30, 40, 50]),
        ({"max_failures": 2}, [1, 2], [0, None, None, 30, 40, 50]),
        ({"chunk_size": "auto", "max_failures": 1}, [5], [0, 10, 20, 30, 40, None]),
        ({"results": "counts", "max_failures": 1}, [3], {"COMPLETED": 5, "FAILED": 1}),
    ],
)
def test_values_are_those_of_the_items(
    hook: HorsiesHook, stored: dict[str, Any], given: dict[str, Any], failing: list[int], expected: Any
) -> None:
    assert isinstance(run(hook, start(batch(**given), stored), *failing), TaskSuccessEvent)
    assert stored["return_value"] == expected


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_reference_leads_to_the_values(hook: HorsiesHook, stored: dict[str, Any], chunk_size: int | None) -> None:
    operator = batch(chunk_size=chunk_size, results="reference")
    assert isinstance(run(hook, start(operator, stored)), TaskSuccessEvent)
    expected = [1] * 6 if chunk_size is None else [0, 10, 20, 30, 40, 50]
    assert list(hook.read_values(stored["return_value"])) == expected
    # A clear that does not reset the run stays in the life.
    submit(hook, range(6), traced(2), chunk_size)
    with pytest.raises(TaskNotFound, match=r"The batch of .* was submitted again"):
        list(hook.read_values(stored["return_value"]))
    with pytest.raises(TaskNotFound, match=r"Item 0 of the batch of .* was submitted again"):
        list(hook.read_values({**stored["return_value"], "digest": None}))


def test_large_batch_is_sent_and_read_off_the_loop(
    hook: HorsiesHook, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "MAX_TASKS_ON_LOOP", 3)
    monkeypatch.setattr("airflow_horsies.client.batches.PAGE_ITEMS", 4)
    assert isinstance(run(hook, start(batch(9), stored)), TaskSuccessEvent)
    assert stored["return_value"] == [10 * number for number in range(9)]


@pytest.mark.parametrize("chunk_size", [None, 2, 6])
def test_more_failures_than_allowed_are_never_a_success(
    hook: HorsiesHook, stored: dict[str, Any], chunk_size: int | None
) -> None:
    operator = batch(chunk_size=chunk_size, max_failures=1)
    trigger = start(operator, stored)
    event = run(hook, trigger, 0, 1)
    assert not isinstance(event, TaskSuccessEvent) and "return_value" not in stored
    with pytest.raises(BatchFailed, match=r"2 of 6 .* did not complete, more than the 1 allowed"):
        operator.execute_complete(trigger._context(), event.payload)


def test_value_that_airflow_cannot_store_is_left_to_a_worker(hook: HorsiesHook, stored: dict[str, Any]) -> None:
    async def main() -> TriggerEvent:
        event = asyncio.create_task(first_event(start(batch(1), stored)))
        while not event.done() and not (ids := await asyncio.to_thread(live, hook)):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(rig.write, hook, ids[0], {0: "a\0b"})
        await asyncio.to_thread(rig.end, hook, ids[0])
        return await asyncio.wait_for(event, 30)

    event = asyncio.run(main())
    assert event.payload["reason"] == "ended" and "return_value" not in stored


def test_workers_that_do_not_know_chunks_are_reported_on_a_worker(
    hook: HorsiesHook, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(hook, [9], traced(), None)
    put_worker(hook, 7)
    monkeypatch.setattr("airflow_horsies.client.batches.STARTING_SECONDS", 0)
    event = asyncio.run(asyncio.wait_for(first_event(start(batch(), stored)), 30))
    assert event.payload["reason"] == "not_started"
    assert "chunk" in event.payload["message"]


# -- what comes again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_try_that_another_triggerer_takes_over_sends_nothing(
    hook: HorsiesHook, stored: dict[str, Any], chunk_size: int | None
) -> None:
    operator = batch(chunk_size=chunk_size)
    first = start(operator, stored)
    asyncio.run(_start(first))
    ids = live(hook)
    end_all(hook, 1)
    trigger = start(operator, stored)
    event = run(hook, trigger)
    assert not isinstance(event, TaskSuccessEvent)
    assert [one.horsies_task_id for one in hook.read_submissions(INSTANCE)] == ids
    # A failure of this try is not one that a repair left as it was, so Airflow may retry.
    assert event.payload["kept"] == 0
    assert isinstance(run(hook, start(operator, stored, try_number=2)), TaskSuccessEvent)
    assert len(hook.read_submissions(INSTANCE)) == len(ids) + 1


async def _start(trigger: Any) -> None:
    trigger._waiting = await trigger._start(await trigger._client())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_retry_sends_what_failed_and_a_clear_after_success_sends_all(hook: HorsiesHook, chunk_size: int | None) -> None:
    assert submit(hook, range(4), traced(), chunk_size).outcomes == {SENT: 4}
    end_all(hook, 1)
    assert submit(hook, range(4), traced(2), chunk_size).outcomes == {SENT: 1, ADOPTED: 3}
    end_all(hook)
    # The trace stays as it is if the clear does not reset the run.
    again = submit(hook, range(4), traced(3), chunk_size)
    assert (again.outcomes, again.life) == ({SENT: 4}, 1)
    assert submit(hook, range(4), traced(3), chunk_size).outcomes == {REATTACHED: 4}
    assert len(live(hook)) == len(again.task_ids)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_clear_after_a_success_with_allowed_failures_sends_all(
    hook: HorsiesHook, stored: dict[str, Any], chunk_size: int | None
) -> None:
    operator = batch(4, chunk_size=chunk_size, max_failures=1, results="counts")
    assert isinstance(run(hook, start(operator, stored), 1), TaskSuccessEvent)
    first = {one.horsies_task_id for one in hook.read_submissions(INSTANCE)}
    # The trace stays as it is if the clear does not reset the run.
    assert isinstance(run(hook, start(operator, stored, try_number=2)), TaskSuccessEvent)
    assert stored["return_value"] == {"COMPLETED": 4}
    assert not first & {one.horsies_task_id for one in hook.read_submissions(INSTANCE) if one.is_latest}


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("failing", [[], [1]])
def test_a_clear_of_a_batch_that_is_only_sent_sends_all(
    hook: HorsiesHook, stored: dict[str, Any], chunk_size: int | None, failing: list[int]
) -> None:
    operator = batch(4, chunk_size=chunk_size, wait_for_completion=False)
    assert isinstance(asyncio.run(first_event(start(operator, stored))), TaskSuccessEvent)
    first = stored["return_value"]
    if failing:
        end_all(hook, *failing)
    # The trace stays as it is if the clear does not reset the run.
    assert isinstance(asyncio.run(first_event(start(operator, stored, try_number=2))), TaskSuccessEvent)
    again = stored["return_value"]
    assert len(again) == len(first) and not {*first} & {*again}
    assert {*live(hook)} == {*again}


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_retry_after_a_try_that_was_given_up_keeps_what_completed(hook: HorsiesHook, chunk_size: int | None) -> None:
    allowing = replace(rig.batch(range(4), chunk_size), max_failures=3)
    hook.client.submit_batch(allowing, INSTANCE, traced())
    *_, last = live(hook)
    hook.cancel_task(last)
    end_all(hook)
    again = hook.client.submit_batch(allowing, INSTANCE, traced(2))
    lost = 1 if chunk_size is None else 2
    assert again.outcomes == {SENT: lost, ADOPTED: 4 - lost}


def test_success_is_that_of_the_requested_items(hook: HorsiesHook) -> None:
    submit(hook, range(4), traced(), 4)
    submit(hook, range(3), traced(), 4)
    end_all(hook)
    # The chunk failed because of the item that was dropped.
    assert submit(hook, range(3), traced(2), 4).outcomes == {SENT: 3}


def test_item_that_the_same_try_gave_up_is_sent_again(hook: HorsiesHook) -> None:
    for chunk_size in (None, 2):
        at = traced(1, f"trace {chunk_size}", run_started_at=None if chunk_size is None else rig.NOON)
        submit(hook, range(2), at, chunk_size)
        assert submit(hook, range(1), at, chunk_size).outcomes == {REATTACHED: 1}
        assert submit(hook, range(2), at, chunk_size).outcomes == {REATTACHED: 1, SENT: 1}


def test_asynchronous_submission_is_the_same(hook: HorsiesHook) -> None:
    first = submit(hook, range(5), traced())
    again = asyncio.run(ask(hook, "submit_batch", rig.batch(range(5)), INSTANCE, traced()))
    assert again.task_ids == first.task_ids and again.outcomes == {REATTACHED: 5}


# -- repair ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("clear_number", [0, 3])
def test_repair_that_a_user_asked_for(hook: HorsiesHook, chunk_size: int | None, clear_number: int) -> None:
    submit(hook, range(4), traced(), chunk_size)
    end_all(hook, 0, 1, 2)
    request_repair(hook.client, INSTANCE, clear_number=clear_number, requested_by="ann", items=[1])
    cleared = traced(2, "trace b")
    assert submit(hook, range(4), cleared, chunk_size).outcomes == {KEPT: 2, SENT: 1, ADOPTED: 1}
    end_all(hook, 1)
    # Another triggerer takes over: what failed in this try was not left as it was.
    assert submit(hook, range(4), cleared, chunk_size).outcomes == {KEPT: 2, REATTACHED: 1, ADOPTED: 1}
    assert submit(hook, range(4), traced(3, "trace c"), chunk_size).outcomes == {SENT: 4}


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_request_whose_clear_left_the_trace_as_it_is_does_not_bind_a_later_clear(
    hook: HorsiesHook, chunk_size: int | None
) -> None:
    submit(hook, range(4), traced(), chunk_size)
    end_all(hook, 1)
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann")
    # The clear did not reset the run, so the try counts as a retry.
    assert submit(hook, range(4), traced(2), chunk_size).outcomes == {SENT: 1, ADOPTED: 3}
    end_all(hook)
    assert submit(hook, range(4), traced(3, "trace b"), chunk_size).outcomes == {SENT: 4}


@pytest.mark.parametrize("on_clear", ["all", "failed"])
def test_nothing_is_kept_without_a_request(hook: HorsiesHook, on_clear: str) -> None:
    submit(hook, range(4), traced())
    end_all(hook, 1)
    # Perhaps the run was created again: only Airflow's workers know.
    assert submit(hook, range(4), traced(2, "trace b"), on_clear=on_clear).outcomes == {SENT: 4}


def test_request_is_void_for_a_run_that_was_made_again(hook: HorsiesHook) -> None:
    submit(hook, range(4), traced())
    end_all(hook, 1)
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann")
    remade = traced(1, "trace b", run_started_at=rig.NOON.replace(day=2))
    assert submit(hook, range(4), remade).outcomes == {SENT: 4}


def test_late_kill_of_an_earlier_life_cancels_nothing_that_a_repair_took_over(
    hook: HorsiesHook, stored: dict[str, Any]
) -> None:
    trigger = start(batch(4), stored)
    asyncio.run(_start(trigger))
    end_task(hook, live(hook)[0], FAILED, MOVED)
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann")
    assert submit(hook, range(4), traced(2, "trace b")).outcomes == {SENT: 2, REATTACHED: 2}
    before = live(hook)
    with suppress(TaskNotFound):
        asyncio.run(trigger._release(INSTANCE))
    assert live(hook) == before
