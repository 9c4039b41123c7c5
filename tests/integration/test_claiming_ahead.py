"""Tasks that a worker claims ahead, with the defaults of an app without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from tests.integration.worker_rig import HERE, MakeRig, Rig

pytest.importorskip("horsies")

APP = "short_worker_tasks:app"
WAIT_SECONDS = 180


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("claiming_ahead", app=APP, processes=1)


@pytest.fixture
def second(rig: Rig, tmp_path: Path) -> Iterator[HorsiesWorker]:
    """Another worker, which is not started."""
    info = rig.postgres.conninfo(rig.hook.settings.database.connect_args["dbname"])
    worker = HorsiesWorker(
        APP,
        conninfo=info,
        processes=1,
        log=tmp_path / "second.log",
        folder=tmp_path,
        environ={"PYTHONPATH": str(HERE)},
        command=SPARK_WORKER,
    )
    yield worker
    worker.stop()


def nap(seconds: float, timeout: timedelta | None = None) -> TaskSpec:
    return TaskSpec(task_name="nap", kwargs={"seconds": seconds}, timeout=timeout)


def claim_behind(hook: HorsiesHook, long: TaskSpec, last: TaskSpec) -> tuple[str, str]:
    """Send a long task and another after many short ones, until the worker has claimed both together."""
    for _ in range(10):
        *short, running, waiting = hook.enqueue_tasks([*[nap(0)] * 30, long, last])
        hook.wait(short, timeout_seconds=WAIT_SECONDS)
        give_up = time.monotonic() + WAIT_SECONDS
        while (state := hook.read_task(running).state) in (TaskState.PENDING, TaskState.CLAIMED):
            assert time.monotonic() < give_up, state
            time.sleep(0.02)
        if hook.read_task(waiting).state is TaskState.CLAIMED:
            return running, waiting
        hook.cancel_tasks([running, waiting])
    pytest.fail("Nothing was claimed ahead.")


def test_an_idle_worker_gets_the_tasks_that_another_cannot_start(rig: Rig, second: HorsiesWorker) -> None:
    second.start()
    second.wait_live()
    rig.hook.wait(rig.hook.enqueue_tasks([nap(0.1)] * 8), timeout_seconds=WAIT_SECONDS)
    time.sleep(3)
    ids = rig.hook.enqueue_items(TaskSpec(task_name="nap"), [{"seconds": 4.0}] * 4, chunk_size=2)
    rig.hook.wait(ids, timeout_seconds=WAIT_SECONDS)
    tasks = [rig.hook.read_task(task_id) for task_id in ids]
    waits = [(task.started_at - task.enqueued_at).total_seconds() for task in tasks if task.started_at]
    assert len({task.worker_id for task in tasks}) == 2, f"one worker ran both; they waited {waits} s"


def test_a_task_that_waits_behind_a_long_one_goes_to_an_idle_worker(rig: Rig, second: HorsiesWorker) -> None:
    running, waiting = claim_behind(rig.hook, nap(60), nap(0))
    second.start()
    rig.hook.wait([waiting], timeout_seconds=WAIT_SECONDS)
    assert rig.hook.read_task(running).state is TaskState.RUNNING
    assert rig.hook.read_task(waiting).worker_id != rig.hook.read_task(running).worker_id
    rig.hook.cancel_task(running)


def test_the_timeout_of_a_task_that_was_claimed_ahead_begins_with_its_start(rig: Rig) -> None:
    running, waiting = claim_behind(rig.hook, nap(3), nap(2, timedelta(seconds=4)))
    tasks = rig.hook.wait([running, waiting], timeout_seconds=WAIT_SECONDS)
    assert [(task.state, task.error_code) for task in tasks] == [(TaskState.COMPLETED, None)] * 2
