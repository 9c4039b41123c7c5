"""Tasks that start in the triggerer, while another triggerer or a later try has taken them over."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_horsies.client import async_client
from airflow_horsies.client.client import Client
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskState
from airflow_horsies.operators import starting
from airflow_horsies.triggers import base
from tests.integration.releases import MOVED
from tests.integration.test_starting import INSTANCE, first_event, one, start, stored
from tests.integration.test_starting_batches import batch, end_all, live
from tests.unit.triggers.rig import answering

__all__ = ["stored"]

pytestmark = [pytest.mark.usefixtures("release"), pytest.mark.parametrize("release", [MOVED], indirect=True)]

TASKS = {"task": one, "batch": lambda: batch(4), "unchunked batch": lambda: batch(4, chunk_size=None)}


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch, stored: dict[str, Any]) -> list[Any]:
    """The values that triggers deleted."""
    values: list[Any] = []
    monkeypatch.setattr(starting, "delete_result", lambda ti: values.append(stored.pop("return_value", None)))
    return values


def run_frozen(hook: HorsiesHook, trigger: Any, meanwhile: Any) -> TriggerEvent:
    """The event of a trigger whose process stops once it has submitted, and goes on after all this."""

    async def main() -> TriggerEvent:
        await _start(trigger)
        await asyncio.to_thread(end_all, hook)
        await asyncio.to_thread(meanwhile)
        return await asyncio.wait_for(first_event(trigger), 30)

    return asyncio.run(main())


@pytest.mark.parametrize("kind", TASKS)
# The clear of a run that is not reset leaves the trace as it is.
@pytest.mark.parametrize("trace", ["a", "b"])
def test_value_of_a_trigger_that_a_later_try_has_left_behind_is_not_stored(
    hook: HorsiesHook, stored: dict[str, Any], kind: str, trace: str
) -> None:
    task = TASKS[kind]()

    def succeed() -> None:
        asyncio.run(_start(start(task, stored, try_number=2, trace=trace)))
        end_all(hook)
        stored["return_value"] = "of the later try"

    event = run_frozen(hook, start(task, stored), succeed)
    assert stored["return_value"] == "of the later try"
    assert not isinstance(event, TaskSuccessEvent)


def test_value_of_a_try_is_deleted_by_the_trigger_that_sent_it_only(
    hook: HorsiesHook, stored: dict[str, Any], deleted: list[Any]
) -> None:
    """A triggerer that was silent for a while starts a trigger after another one has ended the same try."""
    stored["return_value"] = "of try 1"
    silent = start(one(), stored, try_number=2)
    event = run_frozen(hook, start(one(), stored, try_number=2), lambda: None)
    assert isinstance(event, TaskSuccessEvent) and deleted == ["of try 1"]
    assert stored["return_value"] == 1

    asyncio.run(_start(silent))
    assert stored["return_value"] == 1


async def _start(trigger: Any) -> None:
    trigger._waiting = await trigger._start(await trigger._client())


def test_kill_while_a_thread_submits_cancels_what_it_sends(
    hook: HorsiesHook, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "MAX_TASKS_ON_LOOP", 3)
    monkeypatch.setattr(base, "read_state_async", answering("failed"))
    submit, begun, killed = Client.submit_batch, threading.Event(), threading.Event()

    def submit_slowly(*args: Any, **given: Any) -> Any:
        begun.set()
        assert killed.wait(30)
        return submit(*args, **given)

    monkeypatch.setattr(Client, "submit_batch", submit_slowly)

    async def main() -> None:
        trigger = start(batch(9), stored)
        running = asyncio.create_task(first_event(trigger))
        assert await asyncio.to_thread(begun.wait, 30)
        # As Airflow does if a user marks the task.
        running.cancel()
        await asyncio.wait({running})
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0.5)
        killed.set()
        await asyncio.wait_for(killing, 30)

    asyncio.run(main())
    sent = hook.read_submissions(INSTANCE)
    assert sent and live(hook) == []
    assert {hook.read_task(each.horsies_task_id).state for each in sent} == {TaskState.CANCELLED}


def test_value_of_an_earlier_try_does_not_outlive_a_success_without_a_value(
    hook: HorsiesHook, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggerer that started the try was killed before it deleted the value."""
    asyncio.run(_start(start(one(), stored, try_number=2)))
    end_all(hook)
    stored["return_value"] = "of try 1"
    monkeypatch.setattr("airflow_horsies.operators.task.value_of", lambda task: None)
    monkeypatch.setattr(starting, "push_result", lambda *_: None)
    event = asyncio.run(asyncio.wait_for(first_event(start(one(), stored, try_number=2)), 30))
    assert isinstance(event, TaskSuccessEvent) and "return_value" not in stored
