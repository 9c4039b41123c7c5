"""A short Spark job through a warm worker, against spark-submit, a fresh Python, and a direct call; all in one run.

.venv/bin/python benchmarks/spark_runtime.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
from airflow.sdk import Connection
from spark_job import count_and_aggregate

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.operators import HorsiesOperator

HERE = Path(__file__).parent
JOB = HERE / "spark_job.py"
MASTER = "local[2]"
WARM_UPS = 15
WARM_RUNS = 30
LINES = 100_000
LINES_ROUNDS = 15
# Some 20 µs.
WORK_PER_LINE = 300


class Bench(HorsiesOperator):
    """The operator with its hook at hand; everything else is as in a DAG."""

    bench_hook: HorsiesHook

    def _hook(self) -> HorsiesHook:
        return self.bench_hook


def context(number: int) -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="bench", run_id=f"run {number}", task_id="job", map_index=-1, try_number=1, max_tries=0,
        start_date=datetime.now(UTC), xcom_push=lambda **given: None,
    )  # fmt: skip
    ti.task = SimpleNamespace(task_id="job", operator_extra_links=[])
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=datetime.now(UTC)), "run_id": ti.run_id}


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def through_the_operator(hook: HorsiesHook, number: int) -> tuple[float, float]:
    """Seconds in all, and seconds of these in the function."""
    operator = Bench(task_id="job", task_name="bench.job")
    operator.bench_hook = hook
    begun = time.perf_counter()
    told = operator.execute(context(number))
    return time.perf_counter() - begun, told["seconds"]


def run_script(command: list[str], environ: dict[str, str]) -> None:
    subprocess.run(command, env=environ, check=True, capture_output=True)


def lines_seconds(hook: HorsiesHook, name: str, work: int, queue: str = "default") -> float:
    spec = TaskSpec(task_name=name, kwargs={"number": LINES, "work": work}, queue=queue)
    (task,) = hook.wait([hook.enqueue(spec)], timeout_seconds=300)
    assert task.result, task
    return float(task.result.ok)


def print_cost_of_lines(hook: HorsiesHook, rounds: int) -> None:
    """Against a worker that knows nothing of ours, in turns."""
    for work, what in ((0, "and does nothing else"), (WORK_PER_LINE, "and works between its lines")):
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(rounds):
            seconds["plain"].append(lines_seconds(hook, "bench.plain_lines", work, "plain"))
            seconds["ours"].append(lines_seconds(hook, "bench.lines", work))
        ratios = sorted(ours / plain for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True))
        middle = {name: statistics.median(each) for name, each in seconds.items()}
        print(f"a task that prints {LINES:,} lines {what}: {middle['ours'] / middle['plain']:.2f} times a task without "
              f"our runtime ({ratios[0]:.2f} to {ratios[-1]:.2f}; {middle['plain']:.2f} s)", flush=True)  # fmt: skip


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds: int = arguments.parse_args().rounds
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "bench", durable=True) as postgres:
        folder = Path(name)
        environ = {
            **os.environ,
            "JAVA_HOME": str(find_java_home(folder / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYTHONPATH": str(HERE),
            "HORSIES_SPARK_MASTER": MASTER,
            # A plain worker that writes each line at once would make ours look better than it is.
            "PYTHONUNBUFFERED": "",
        }
        os.environ.update(environ)
        info = postgres.conninfo()
        fields = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
        connection = Connection(conn_id="bench", conn_type="horsies", schema=info["dbname"], **fields)
        worker = HorsiesWorker(
            "spark_tasks:app", conninfo=info, log=folder / "worker.log", folder=folder, environ=environ,
            command=SPARK_WORKER,
        )  # fmt: skip
        plain_worker = HorsiesWorker(
            "plain_tasks:app", conninfo=info, log=folder / "plain.log", folder=folder, environ=environ
        )
        with worker, plain_worker, HorsiesHook("bench", connection=connection) as hook:
            measure(hook, environ, rounds)
    return 0


def measure(hook: HorsiesHook, environ: dict[str, str], rounds: int) -> None:
    from pyspark.sql import SparkSession

    print(f"{len(os.sched_getaffinity(0))} cores, {MASTER}; warming up …", flush=True)
    direct = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    for number in range(WARM_UPS):
        through_the_operator(hook, number)
        count_and_aggregate(direct)

    print(f"{WARM_RUNS} warm runs …", flush=True)
    totals, inside, directly = [], [], []
    for number in range(WARM_RUNS):
        total, function = through_the_operator(hook, WARM_UPS + number)
        totals.append(total)
        inside.append(total - function)
        directly.append(timed(lambda: count_and_aggregate(direct)))
    direct.stop()

    submit = Path(sys.executable).with_name("spark-submit")
    scripts = {
        "spark-submit": [str(submit), "--master", MASTER, str(JOB)],
        "python job.py": [sys.executable, str(JOB)],
    }
    warm = statistics.median(totals)
    print(f"warm HorsiesOperator: {warm * 1000:.0f} ms (median of {WARM_RUNS})")
    print(f"direct call on a warm session: {statistics.median(directly) * 1000:.0f} ms")
    print(f"overhead, operator less direct call: {(warm - statistics.median(directly)) * 1000:.0f} ms p50")
    print(f"overhead, operator less its own function: {statistics.median(inside) * 1000:.0f} ms p50", flush=True)
    for name, command in scripts.items():
        seconds = [timed(lambda command=command: run_script(command, environ)) for _ in range(rounds)]
        ratios = sorted(each / warm for each in seconds)
        print(f"{name}: {statistics.median(seconds):.1f} s, {statistics.median(ratios):.0f} times the warm operator "
              f"({ratios[0]:.0f} to {ratios[-1]:.0f})", flush=True)  # fmt: skip

    print_cost_of_lines(hook, max(rounds, LINES_ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
