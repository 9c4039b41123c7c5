"""The runtime of workers where Spark runs elsewhere: on a standalone cluster, behind Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_horsies.embedded.spark import EmbeddedSparkCluster, EmbeddedSparkConnect
from airflow_horsies.models import TaskState
from tests.integration.worker_rig import MakeRig, Rig
from tests.integration.worker_streams import assert_ends_with_its_task, assert_is_cancelled_with_its_task

pytest.importorskip("horsies")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSparkCluster]:
    with EmbeddedSparkCluster(tmp_path_factory.mktemp("cluster"), workers=2, cores=1, memory="1g") as made:
        yield made


@pytest.fixture(scope="module")
def on_cluster(cluster: EmbeddedSparkCluster, make_rig: MakeRig) -> Rig:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        # A failure is not tried again on another executor, as it would be told only after four of them.
        "spark.task.maxFailures": 1,
    }
    environ = {
        **cluster.environ,
        "PYSPARK_PYTHON": sys.executable,
        "HORSIES_SPARK_MASTER": cluster.url,
        "HORSIES_SPARK_CONF": json.dumps(conf),
    }
    return make_rig("on_cluster", **environ)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSparkConnect]:
    with EmbeddedSparkConnect(tmp_path_factory.mktemp("connect")) as made:
        yield made


@pytest.fixture(scope="module")
def on_connect(connect: EmbeddedSparkConnect, make_rig: MakeRig) -> Rig:
    return make_rig("on_connect", HORSIES_SPARK_MASTER=connect.url)


def message_of(rig: Rig, name: str, /, **given: Any) -> tuple[str | None, str]:
    task = rig.run(name, **given)
    assert task.state is TaskState.FAILED
    assert task.result and task.result.error
    return task.error_code, str(task.result.error.message)


def test_a_cluster_runs_the_work_on_its_executors(on_cluster: Rig) -> None:
    assert on_cluster.ok("where") == {"executors": 2, "sum": sum(range(1000))}


def test_executors_that_are_killed_are_reported_and_the_next_task_succeeds(
    cluster: EmbeddedSparkCluster, on_cluster: Rig
) -> None:
    task_id = on_cluster.send("long_spark", parts=40)
    on_cluster.until(lambda: (progress := on_cluster.progress(task_id)) and progress.done, "work on the executors")
    # All of them: one alone may have had nothing to do at that moment, which loses no work.
    for executor in cluster.executors():
        os.kill(executor, signal.SIGKILL)
    task = on_cluster.wait(task_id)
    assert task.error_code == "SPARK_EXECUTOR_LOST"
    assert task.result and task.result.error and "An executor was lost" in str(task.result.error.message)
    assert on_cluster.ok("count") == sum(range(0, 1000, 2))


def test_an_executor_without_memory_says_so(on_cluster: Rig) -> None:
    code, message = message_of(on_cluster, "fill_memory", numbers=400_000_000)
    assert code == "SPARK_OUT_OF_MEMORY"
    assert "spark.executor.memory" in message
    assert on_cluster.ok("count") == sum(range(0, 1000, 2))


def test_cancel_reaches_the_executors(on_cluster: Rig) -> None:
    task_id = on_cluster.send("long_spark", parts=60)
    on_cluster.until(lambda: on_cluster.progress(task_id), "work on the executors")
    on_cluster.hook.cancel_task(task_id)
    on_cluster.until(lambda: on_cluster.records(task_id)[0].finished_at, "the end of the attempt")
    assert on_cluster.ok("active_jobs") == 0


def test_connect_runs_tasks_in_sessions_of_their_own(on_connect: Rig) -> None:
    assert on_connect.ok("where")["sum"] == sum(range(1000))
    assert on_connect.ok("total", day="2026-01-02", rows=7) == {"day": "2026-01-02", "rows": 7}
    first, second = on_connect.ok("views", name="mine"), on_connect.ok("views", name="yours")
    assert (first, second) == ([], [])


@pytest.mark.parametrize(
    ("how", "code", "part"),
    [
        ("missing column", "SPARK_ANALYSIS_ERROR", "nope"),
        ("division", "SPARK_DATA_ERROR", "Division by zero"),
        ("udf", "PYTHON_UDF_ERROR", "ValueError: no such day"),
        ("pandas udf", "PYTHON_UDF_ERROR", "lose_all"),
    ],
)
def test_errors_behind_connect_have_the_same_codes(on_connect: Rig, how: str, code: str, part: str) -> None:
    found, message = message_of(on_connect, "fail", how=how)
    assert found == code
    assert part in message
    assert "\tat " not in message and "JVM stacktrace" not in message


def test_cancel_reaches_the_connect_server(on_connect: Rig) -> None:
    task_id = on_connect.send("long_spark", parts=60)
    on_connect.until(lambda: on_connect.progress(task_id), "progress of the server")
    on_connect.hook.cancel_task(task_id)
    record = on_connect.until(
        lambda: next((each for each in on_connect.records(task_id) if each.finished_at), None), "the end"
    )
    assert record.outcome == "CANCELLED"
    assert on_connect.ok("total", day="2026-01-02", rows=7)["rows"] == 7


def test_a_stream_behind_connect_in_a_session_of_the_task_s_own_ends_with_the_task(
    on_connect: Rig, tmp_path: Path
) -> None:
    assert_ends_with_its_task(on_connect, tmp_path)


def test_a_stream_behind_connect_in_a_session_of_the_task_s_own_ends_when_the_task_is_cancelled(
    on_connect: Rig, tmp_path: Path
) -> None:
    assert_is_cancelled_with_its_task(on_connect, tmp_path)


def test_a_connect_server_that_died_is_told_by_the_task_that_met_it_and_by_the_next_one(
    tmp_path_factory: pytest.TempPathFactory, make_rig: MakeRig
) -> None:
    with EmbeddedSparkConnect(tmp_path_factory.mktemp("mortal")) as server:
        rig = make_rig("mortal_connect", HORSIES_SPARK_MASTER=server.url)
        task_id = rig.send("long_spark", parts=60)
        rig.until(lambda: rig.progress(task_id), "progress of the server")
        for process in server.processes:
            process.stop()
        task = rig.wait(task_id)
    assert (task.state, task.error_code) == (TaskState.FAILED, "SPARK_SESSION_LOST")
    assert rig.run("total", day="2026-01-02").error_code == "SPARK_SESSION_LOST"
