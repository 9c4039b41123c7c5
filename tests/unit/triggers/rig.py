"""Triggers, run without a triggerer; their tasks are those that a test puts into the tables of the fake horsies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.models import LogLine, TaskInstanceKey, TaskState
from airflow_horsies.testing import FakeHorsies
from airflow_horsies.triggers import HorsiesTrigger
from tests.unit.fakes import make_task

ID = "0198a0de-0000-7000-8000-000000000001"
OTHER_ID = "0198a0de-0000-7000-8000-000000000002"
INSTANCE = {"dag_id": "sales", "run_id": "manual__1", "task_id": "load", "map_index": -1}
DEADLINE = "2026-01-01T12:00:00+00:00"


def put_states(horsies: FakeHorsies, states: Mapping[str, TaskState | None]) -> None:
    """As if horsies had these tasks, and those without a state were gone; what is not named is running."""
    running: dict[str, TaskState | None] = {ID: TaskState.RUNNING, OTHER_ID: TaskState.RUNNING}
    horsies.memory.tasks = {
        task_id: make_task(task_id, state) for task_id, state in (running | dict(states)).items() if state is not None
    }


def put_lines(horsies: FakeHorsies, task_id: str, *numbers: int) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    horsies.memory.lines[task_id] = [
        LogLine(attempt=1, number=number, logged_at=noon, level="INFO", text=f"line {number}") for number in numbers
    ]


def run(trigger: HorsiesTrigger) -> dict[str, Any]:
    async def first_event() -> Any:
        # Closed, as Airflow has it come to its end: what is left open is cancelled with the loop.
        async with aclosing(trigger.run()) as events:
            return (await anext(events)).payload

    trigger._log = logging.getLogger("the trigger")
    payload: dict[str, Any] = asyncio.run(asyncio.wait_for(first_event(), 10))
    return payload


def soon(seconds: float = 0.4) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def deferred_now(trigger: HorsiesTrigger, trigger_id: int | None = 1) -> HorsiesTrigger:
    trigger.deferred_at = soon(0)
    trigger.trigger_id = trigger_id  # type: ignore[assignment]
    return trigger


def answering(state: str | None, *, after: float = 0) -> Any:
    """Airflow's answer to what became of a task instance."""

    async def answer(instance: TaskInstanceKey) -> InstanceState:
        await asyncio.sleep(after)
        return InstanceState(exists=True, state=state)

    return answer
