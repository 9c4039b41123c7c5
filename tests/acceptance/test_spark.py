"""PySpark tasks in real DAG runs, wherever Spark runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.embedded.spark import EmbeddedSparkCluster, EmbeddedSparkConnect
from airflow_horsies.embedded.stack import HORSIES_DATABASE, EmbeddedStack
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, TaskState
from tests.acceptance.conftest import HERE, AirflowApi

pytestmark = pytest.mark.timeout(400)

ON_LOOPBACK = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """Parquet files, and what their aggregation must give."""
    folder = tmp_path_factory.mktemp("flights")
    numbers = np.random.default_rng(7)
    rows = pd.DataFrame(
        {"origin": numbers.choice(["EWR", "JFK", "LGA"], 20_000), "delay": numbers.integers(-20, 300, 20_000)}
    )
    for part in range(4):
        rows.iloc[part::4].to_parquet(folder / f"part-{part}.parquet")
    groups = rows.groupby("origin")["delay"]
    expected = {str(origin): [float(len(delays)), round(delays.mean() / 60, 6)] for origin, delays in groups}
    return folder, expected


@contextmanager
def spark_at(place: str, folder: Path) -> Iterator[dict[str, str]]:
    """What a worker must be told to have its Spark there."""
    with ExitStack() as opened:
        match place:
            case "local":
                yield {"HORSIES_SPARK_MASTER": "local[2]"}
            case "standalone":
                cluster = opened.enter_context(EmbeddedSparkCluster(folder / "cluster", workers=2, cores=1))
                conf = json.dumps({**ON_LOOPBACK, "spark.executor.memory": "512m"})
                yield {**cluster.environ, "HORSIES_SPARK_MASTER": cluster.url, "HORSIES_SPARK_CONF": conf}
            case "connect":
                server = opened.enter_context(EmbeddedSparkConnect(folder / "connect"))
                yield {"HORSIES_SPARK_MASTER": server.url}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "standalone", "connect"])
def test_the_same_task_gives_the_same_result_wherever_spark_runs(
    api: AirflowApi,
    stack: EmbeddedStack,
    flights: tuple[Path, dict[str, list[float]]],
    tmp_path: Path,
    place: str,
) -> None:
    path, expected = flights
    with spark_at(place, tmp_path) as environ:
        worker = HorsiesWorker(
            "spark_tasks:app",
            conninfo=stack.postgres.conninfo(HORSIES_DATABASE),
            log=tmp_path / "worker.log",
            folder=tmp_path,
            environ={
                "JAVA_HOME": str(find_java_home(tmp_path / "java")),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(HERE),
                "SPARK_LOCAL_IP": LOOPBACK,
                "TMPDIR": str(tmp_path),
                "HORSIES_QUEUES": place,
                **environ,
            },
            command=SPARK_WORKER,
        )
        with worker:
            run_id, state = api.run(
                "one_deferred", task_name="acceptance.delays_by_origin", kwargs={"path": str(path)}, queue=place
            )
            assert state == "success", api.story("one_deferred", run_id) + worker.process.log_tail(60)
    assert api.xcom("one_deferred", run_id, "one") == expected
    log = api.log("one_deferred", run_id, "one")
    assert log.count("[attempt 1] 20000 flights") == 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["deferred", "blocking"])
def test_what_a_task_prints_is_in_the_log_of_airflow_while_it_runs(
    api: AirflowApi, hook: HorsiesHook, variant: str
) -> None:
    dag_id = f"one_{variant}"
    run_id = api.trigger(dag_id, task_name="acceptance.slow_count", kwargs={"steps": 15})
    api.until(lambda: api.state(dag_id, run_id, "one") in ("running", "deferred"), 60, "the start")
    api.until(lambda: "step 2 begins" in api.log(dag_id, run_id, "one"), 120, "the lines")
    instance = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id="one")
    (submission,) = hook.read_submissions(instance)
    assert hook.read_task(submission.horsies_task_id).state is TaskState.RUNNING
    assert api.wait(dag_id, run_id) == "success"
    log = api.log(dag_id, run_id, "one")
    assert [log.count(f"[attempt 1] step {step} begins") for step in range(15)] == [1] * 15
    assert "Progress:" in log
    assert re.search(r"jobs \d+, stages \d+, tasks \d+", log)


@pytest.mark.parametrize("variant", ["deferred", pytest.param("blocking", marks=pytest.mark.slow)])
def test_marking_a_running_task_failed_stops_its_spark_job(api: AirflowApi, hook: HorsiesHook, variant: str) -> None:
    dag_id = f"one_{variant}"
    run_id = api.trigger(dag_id, task_name="acceptance.slow_count", kwargs={"steps": 120})
    instance = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id="one")
    api.until(lambda: bool(hook.read_submissions(instance)), 60, "the submission")
    (submission,) = hook.read_submissions(instance)
    task_id = submission.horsies_task_id
    api.until(lambda: bool(hook.read_lines(task_id)), 120, "the first line")
    if variant == "deferred":
        api.until(lambda: api.tasks(dag_id, run_id)["one"]["triggerer_job"] is not None, 60, "the deferral")
    api.mark(dag_id, run_id, "one", "failed")
    api.until(
        lambda: any(each.finished_at for each in hook.read_attempts([task_id]).get(task_id, ())),
        60,
        "the end of the attempt",
    )
    (record,) = hook.read_attempts([task_id]).get(task_id, ())
    assert record.outcome == "CANCELLED"
    assert hook.read_task(task_id).state is TaskState.CANCELLED
