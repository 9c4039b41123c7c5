from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.process import is_free
from airflow_horsies.embedded.spark import EmbeddedSpark, EmbeddedSparkCluster, EmbeddedSparkConnect

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("spark_job.py")
ROWS = 1000
SUMS = [sum(n * n for n in range(ROWS) if n % 3 == remainder) for remainder in range(3)]


@contextmanager
def running_job(spark: EmbeddedSpark) -> Iterator[subprocess.Popen[str]]:
    """A driver that has done its job and waits with its session open."""
    environ = {**os.environ, **spark.environ}
    command = [sys.executable, JOB, spark.url, str(ROWS)]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            line = driver.stdout.readline()
            assert line, driver.communicate()[1]
            assert json.loads(line) == SUMS
            yield driver
        finally:
            driver.communicate(timeout=60)
            driver.kill()


def tree_of(spark: EmbeddedSpark) -> list[psutil.Process]:
    guards = [psutil.Process(process.guard_pid) for process in spark.processes]
    return [each for guard in guards for each in (guard, *guard.children(recursive=True))]


def assert_gone(spark: EmbeddedSpark, url: str, processes: list[psutil.Process], logs: set[str]) -> None:
    assert [each for each in processes if each.is_running()] == []
    port = urlsplit(url).port
    assert port
    assert is_free(port)
    assert {each.name for each in spark.folder.iterdir()} - {"java"} == logs


def test_a_cluster_runs_a_pandas_udf_on_every_worker_survives_a_killed_executor_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with EmbeddedSparkCluster(tmp_path / "a cluster") as cluster:
        url = cluster.url
        assert re.fullmatch(r"spark://127\.0\.0\.1:\d+", url)
        with running_job(cluster) as driver:
            processes = tree_of(cluster)
            executors = cluster.executors()
            assert len(executors) == cluster.workers
            os.kill(executors[0], signal.SIGKILL)
            output, errors = driver.communicate("once more\n", timeout=120)
            assert output.strip() == str(ROWS), errors
        processes += tree_of(cluster)
    assert_gone(cluster, url, processes, {"spark-master.log", "spark-worker-1.log", "spark-worker-2.log"})


def test_a_connect_server_runs_a_pandas_udf_and_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedSparkConnect(tmp_path / "a server") as server:
        url = server.url
        assert re.fullmatch(r"sc://127\.0\.0\.1:\d+", url)
        with running_job(server):
            processes = tree_of(server)
    assert_gone(server, url, processes, {"spark-connect.log"})


def test_a_server_that_cannot_start_shows_the_end_of_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    server = EmbeddedSparkConnect(tmp_path, master="nonsense")
    with pytest.raises(EmbeddedError, match=r"(?s)The Spark Connect server ended with exit code 1\..*Master must"):
        server.start()
    assert server.processes == []
    assert not server.work_folder.exists()
    with pytest.raises(EmbeddedError, match="not running"):
        _ = server.url
