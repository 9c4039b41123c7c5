"""HorsiesNotifier in the triggerer, as Airflow awaits it for a deadline alert."""

from __future__ import annotations

import asyncio
from functools import partial

import psycopg
import pytest
from asgiref.sync import sync_to_async

from airflow_horsies import notifications
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.notifications import HorsiesNotifier

OTHERS_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _connected(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "HorsiesHook", partial(HorsiesHook, connection=hook.connection))


def test_a_notifier_that_waits_for_a_lock_keeps_no_other_trigger_waiting(
    hook: HorsiesHook, postgres: EmbeddedPostgres, database: str
) -> None:
    notifier = HorsiesNotifier(task_name="add", kwargs={"a": 1, "b": 2})

    async def notify() -> bool:
        with psycopg.connect(**postgres.conninfo(database)) as locker:
            locker.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
            notifying = asyncio.create_task(notifier.async_notify({}))
            await asyncio.sleep(1.0)
            # As Airflow looks connections up, and many providers do their work.
            other = asyncio.create_task(sync_to_async(lambda: None)())
            answered, _ = await asyncio.wait({other}, timeout=OTHERS_SECONDS)
            locker.rollback()
        await asyncio.gather(notifying, other)
        return bool(answered)

    assert asyncio.run(notify())
    assert [task.task_name for task in hook.list_tasks().tasks] == ["add"]


def test_what_is_sent_from_an_event_loop_is_what_is_sent_otherwise(hook: HorsiesHook) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}, queue="q", priority=7)
    ids = [hook.enqueue_task(spec), asyncio.run(hook.enqueue_task_async(spec))]
    ours, others = (hook.read_task(task_id) for task_id in ids)
    for name in ("task_name", "kwargs", "queue", "priority", "state", "good_until", "max_retries"):
        assert getattr(ours, name) == getattr(others, name)


def test_the_same_id_sent_again_from_an_event_loop_is_the_first_task(hook: HorsiesHook) -> None:
    spec = TaskSpec(task_name="add", kwargs={"a": 1}, task_id="0198a0de-0000-7000-8000-000000000001")

    async def send_twice() -> list[str]:
        return [await hook.enqueue_task_async(spec), await hook.enqueue_task_async(spec)]

    assert asyncio.run(send_twice()) == [spec.task_id, spec.task_id]
