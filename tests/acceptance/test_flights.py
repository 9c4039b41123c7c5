"""The example pipeline in real DAG runs: a backfill with a killed worker leaves what the functions leave."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, TaskState, TaskView
from airflow_horsies.worker import TaskFault
from tests.acceptance.conftest import AirflowApi, hook_of
from tests.integration.flights_rig import files_of, open_pipeline

pytestmark = pytest.mark.timeout(900)

DAYS = [date(2013, 1, day) for day in (7, 8, 9)]
OUTAGE = date(2013, 1, 8)
BROKEN = date(2013, 2, 1)
PATIENCE = 400.0


@dataclass
class Reference:
    """What the functions leave when they are called without horsies and Airflow."""

    files: dict[str, bytes]
    month: dict[str, Any]


@pytest.fixture(scope="module")
def lake(stack: EmbeddedStack) -> Path:
    """Where the worker of the stack keeps its tables."""
    return stack.folder / "lake"


@pytest.fixture(scope="module")
def reference(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Also lets all days but those of the test be there, in both lakes: copies, as they are only to fill the month."""
    with open_pipeline(tmp_path_factory.mktemp("reference")) as pipeline:
        for day in DAYS:
            pipeline.run_day(day)
        with pytest.raises(TaskFault):
            pipeline.run_day(BROKEN)
        for mart in ("marts/carriers", "marts/hours"):
            for day in (date(2013, 1, 1) + timedelta(days=number) for number in range(31)):
                if day not in DAYS:
                    for folder in (pipeline.lake, lake):
                        shutil.copytree(pipeline.lake / mart / f"date={DAYS[0]}", folder / mart / f"date={day}")
        month = pipeline.call("roll_up", month="2013-01")
        return Reference(pipeline.files(), month)


@pytest.fixture(scope="module")
def runs(api: AirflowApi, stack: EmbeddedStack, reference: Reference) -> dict[date, str]:
    """The runs of a backfill, and that of the broken day; the worker was killed at work, and started again."""
    runs = backfill(api) | {BROKEN: "broken"}
    day = {"logical_date": f"{BROKEN}T00:00:00Z", "dag_run_id": "broken"}
    api.call("POST", "/dags/flights_daily/dagRuns", json=day)
    with hook_of(stack) as hook:
        api.until(lambda: is_running(hook, runs[DAYS[0]], "marts"), PATIENCE, "the marts of the first day")
    kill(stack)
    stack.worker.start()
    for run_id in runs.values():
        api.wait("flights_daily", run_id, PATIENCE)
    return runs


def backfill(api: AirflowApi, **more: Any) -> dict[date, str]:
    """One day after the other; returns the runs."""
    wanted = {"from_date": f"{DAYS[0]}T00:00:00Z", "to_date": f"{DAYS[-1]}T00:00:00Z", "max_active_runs": 1}
    api.call("POST", "/backfills", json={"dag_id": "flights_daily", **wanted, **more})
    return {day: f"backfill__{day}T00:00:00+00:00" for day in DAYS}


def sent_by(hook: HorsiesHook, run_id: str, task_id: str) -> list[TaskView]:
    key = TaskInstanceKey(dag_id="flights_daily", run_id=run_id, task_id=task_id)
    ids = [submission.horsies_task_id for submission in hook.read_submissions(key)]
    tasks = hook.read_tasks(ids)
    return [tasks[task_id] for task_id in ids]


def is_running(hook: HorsiesHook, run_id: str, task_id: str) -> bool:
    return any(task.state is TaskState.RUNNING for task in sent_by(hook, run_id, task_id))


def kill(stack: EmbeddedStack) -> None:
    """SIGKILL of the worker and everything below it."""
    leader = psutil.Process(stack.worker.process.pid)
    for each in (leader, *leader.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    stack.worker.process.wait(60)


def months(api: AirflowApi) -> list[str]:
    """The runs of the monthly DAG, the oldest first, all of them ended."""

    def found() -> list[dict[str, Any]]:
        return list(api.call("GET", "/dags/flights_monthly/dagRuns?order_by=run_after")["dag_runs"])

    api.until(lambda: all(run["state"] in ("success", "failed") for run in found()), PATIENCE, "the end of the months")
    return [run["dag_run_id"] for run in found()]


def test_backfill_leaves_what_the_functions_leave_by_themselves(
    api: AirflowApi, runs: dict[date, str], lake: Path, reference: Reference
) -> None:
    assert [api.run_state("flights_daily", runs[day]) for day in DAYS] == ["success"] * len(DAYS)
    api.until(lambda: bool(months(api)), PATIENCE, "a run of the monthly DAG")
    assert files_of(lake) == reference.files


def test_killed_worker_costs_an_attempt_and_nothing_else(hook: HorsiesHook, runs: dict[date, str]) -> None:
    tasks = sent_by(hook, runs[DAYS[0]], "marts")
    assert [task.state for task in tasks] == [TaskState.COMPLETED] * 3
    crashed = [attempt for task in tasks for attempt in task.attempts if attempt.error_code == "WORKER_CRASHED"]
    assert len(crashed) == 1 and crashed[0].will_retry


def test_outage_is_healed_by_a_retry_of_horsies(hook: HorsiesHook, runs: dict[date, str]) -> None:
    (task,) = sent_by(hook, runs[OUTAGE], "enrich")
    assert [(attempt.outcome, attempt.error_code) for attempt in task.attempts] == [
        ("FAILED", "WEATHER_UNAVAILABLE"),
        ("COMPLETED", None),
    ]


def test_broken_day_fails_for_good_at_the_first_attempt(
    api: AirflowApi, hook: HorsiesHook, runs: dict[date, str], lake: Path
) -> None:
    assert api.run_state("flights_daily", runs[BROKEN]) == "failed"
    # Airflow itself may lose a task that it has just resumed, and try it again.
    for task in sent_by(hook, runs[BROKEN], "validate"):
        assert (task.state, task.error_code, len(task.attempts)) == (TaskState.FAILED, "QUALITY_GATE_FAILED", 1)
    assert not list(lake.glob(f"marts/*/date={BROKEN}"))


def test_month_is_rolled_up_once_when_it_is_full(api: AirflowApi, runs: dict[date, str], reference: Reference) -> None:
    api.until(lambda: bool(months(api)), PATIENCE, "a run of the monthly DAG")
    (run_id,) = months(api)
    assert {name: task["state"] for name, task in api.tasks("flights_monthly", run_id).items()} == dict.fromkeys(
        ("runs_of_days", "months", "day_is_settled[0]", "roll_up"), "success"
    ), api.story("flights_monthly", run_id)
    assert api.xcom("flights_monthly", run_id, "runs_of_days") == [runs[DAYS[-1]]]
    assert api.xcom("flights_monthly", run_id, "roll_up") == [reference.month]


def test_same_backfill_again_leaves_the_same_bytes_and_rolls_the_month_up_again(
    api: AirflowApi, hook: HorsiesHook, runs: dict[date, str], lake: Path, reference: Reference
) -> None:
    before = months(api)
    api.until(lambda: not is_backfilling(api), PATIENCE, "the end of the backfill")
    again = backfill(api, reprocess_behavior="completed", max_active_runs=3)
    api.until(lambda: not is_backfilling(api), PATIENCE, "the end of the second backfill")
    for day in DAYS:
        assert api.run_state("flights_daily", again[day]) == "success"
        assert len(sent_by(hook, again[day], "ingest")) == 2
    api.until(lambda: len(months(api)) > len(before), PATIENCE, "another run of the monthly DAG")
    # Each of the days tells that the month is full, so that yet another run may have begun.
    assert "failed" not in {api.run_state("flights_monthly", run_id) for run_id in months(api)}
    assert {name: content for name, content in files_of(lake).items() if "staging" not in name} == reference.files


def is_backfilling(api: AirflowApi) -> bool:
    found = api.call("GET", "/backfills?dag_id=flights_daily")["backfills"]
    return any(each["completed_at"] is None for each in found)
