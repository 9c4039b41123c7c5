"""What a trigger does at each wake, however many of its tasks have ended before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest

from airflow_horsies.client.hub import Waiter
from airflow_horsies.core.batch import ChunkCount, FailureCount
from airflow_horsies.models import TaskState
from airflow_horsies.triggers import (
    HorsiesBatchTrigger,
    HorsiesSensorTrigger,
    HorsiesSubmissionTrigger,
    HorsiesTrigger,
    sensing,
)
from airflow_horsies.triggers import batch as batch_module
from airflow_horsies.triggers.base import Reason
from airflow_horsies.triggers.task_log import TaskLog
from tests.unit.triggers.rig import INSTANCE

TASKS = [f"task {number}" for number in range(400)]
MakeTrigger = Callable[[], HorsiesTrigger]


class Client:
    async def count_items(self, task_ids: Collection[str], among: Any = None) -> dict[str, ChunkCount]:
        return {}

    async def read_latest_task_ids(self, task_instance: Any) -> list[str]:
        return TASKS


async def end_one_by_one(trigger: HorsiesTrigger, states: Mapping[str, TaskState]) -> Reason | None:
    client: Any = Client()
    waiter = Waiter(TASKS)
    if isinstance(trigger, HorsiesSubmissionTrigger):
        waiting = asyncio.create_task(trigger._watch_while_latest(client, waiter, TASKS))
    else:
        waiting = asyncio.create_task(trigger._wait(client, waiter, TaskLog(None, TASKS, {})))  # type: ignore[arg-type]
    for task_id, state in states.items():
        waiter.deliver(task_id, state)
        for _ in range(20):
            await asyncio.sleep(0)
    async with asyncio.timeout(5):
        ended = await waiting
    return ended[0] if isinstance(ended, tuple) else ended


@pytest.mark.parametrize(
    ("make", "ends_with"),
    [
        (partial(HorsiesBatchTrigger, task_instance=INSTANCE, life=1, max_failures=100), Reason.ENDED),
        (partial(HorsiesSensorTrigger, task_ids=TASKS, failed_states=["EXPIRED"]), Reason.ENDED),
        (
            partial(HorsiesSubmissionTrigger, task_instance=INSTANCE, allowed_states=["COMPLETED", "FAILED"]),
            Reason.ENDED,
        ),
    ],
    ids=["batch", "sensor", "submission"],
)
def test_the_end_of_a_task_is_looked_at_a_few_times(
    make: MakeTrigger, ends_with: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    class Counting(FailureCount):
        def to_count(self, ended: Mapping[str, TaskState | None], now: float) -> list[str]:
            nonlocal looked_at
            looked_at += len(ended)
            return super().to_count(ended, now)

    def effective_states(states: Mapping[str, TaskState], counts: Any) -> dict[str, TaskState]:
        nonlocal looked_at
        looked_at += len(states)
        return dict(states)

    monkeypatch.setattr(batch_module, "FailureCount", Counting)
    monkeypatch.setattr(sensing, "effective_states", effective_states)
    states = {task_id: TaskState.COMPLETED if number % 8 else TaskState.FAILED for number, task_id in enumerate(TASKS)}
    assert asyncio.run(end_one_by_one(make(), states)) is ends_with
    assert len(TASKS) <= looked_at <= 4 * len(TASKS)


@pytest.mark.parametrize(
    "make",
    [
        partial(HorsiesBatchTrigger, task_instance=INSTANCE, life=1, max_failures=3),
        partial(HorsiesSensorTrigger, task_ids=TASKS, failed_states=["EXPIRED"]),
        partial(HorsiesSubmissionTrigger, task_instance=INSTANCE, failed_states=["EXPIRED"]),
    ],
    ids=["batch", "sensor", "submission"],
)
def test_failures_among_many_decide_at_once(make: MakeTrigger) -> None:
    failed = dict.fromkeys(TASKS[200:204], TaskState.EXPIRED)
    states = {**dict.fromkeys(TASKS[:200], TaskState.COMPLETED), **failed}
    assert asyncio.run(end_one_by_one(make(), states)) is Reason.DECIDED
