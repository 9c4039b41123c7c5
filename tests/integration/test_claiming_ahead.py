"""Tasks that a worker claims ahead, with the defaults of an app without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.models import TaskSpec
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


def nap(seconds: float) -> TaskSpec:
    return TaskSpec(task_name="nap", kwargs={"seconds": seconds})


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
