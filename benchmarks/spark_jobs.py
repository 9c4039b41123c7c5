"""A short Spark job through a warm worker, beside Airflow's own operators, Spark Connect and a direct call.

.venv/bin/python -m benchmarks.spark_jobs [--rounds 5] [--lines]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.embedded.spark import EmbeddedSparkConnect
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.operators import HorsiesOperator
from benchmarks.databases import durable_postgres, open_hook
from benchmarks.executing import task_context, with_hook
from benchmarks.figures import Figure, main, ratio, timed, told
from benchmarks.peers import Peer, spark_provider_python
from benchmarks.spark_job import count_and_aggregate

HERE = Path(__file__).parent
MASTER = "local[2]"
WARM_UPS = 15
WARM_RUNS = 30
LINES = 100_000
LINES_ROUNDS = 15
# Some 20 µs.
WORK_PER_LINE = 300


def through_the_operator(hook: HorsiesHook, number: int) -> tuple[float, float]:
    """Seconds in all, and seconds of these in the function."""
    operator = with_hook(HorsiesOperator, hook, task_id="job", task_name="bench.job")
    begun = time.perf_counter()
    said = operator.execute(task_context(number))
    return time.perf_counter() - begun, said["seconds"]


def lines_seconds(hook: HorsiesHook, name: str, work: int, queue: str = "default") -> float:
    spec = TaskSpec(task_name=name, kwargs={"number": LINES, "work": work}, queue=queue)
    (task,) = hook.wait([hook.enqueue_task(spec)], timeout_seconds=300)
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


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, durable_postgres(Path(name) / "bench") as postgres:
        folder = Path(name)
        environ = {
            "JAVA_HOME": str(find_java_home(folder / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYTHONPATH": str(HERE),
            "HORSIES_SPARK_MASTER": MASTER,
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": MASTER}),
            # A plain worker that writes each line at once would make ours look better than it is.
            "PYTHONUNBUFFERED": "",
        }
        os.environ.update(environ)
        info = postgres.conninfo()
        # The tasks are modules of this package; peers, in environments of their own, are not to see more of it.
        environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
        worker = HorsiesWorker(
            "spark_tasks:app", conninfo=info, log=folder / "worker.log", folder=folder, environ=environ,
            command=SPARK_WORKER,
        )  # fmt: skip
        with worker, open_hook(info) as hook:
            figures = measure_jobs(hook, folder, given.rounds)
            if given.lines:
                plain = HorsiesWorker(
                    "plain_tasks:app", conninfo=info, log=folder / "plain.log", folder=folder, environ=environ
                )
                with plain:
                    print_cost_of_lines(hook, max(given.rounds, LINES_ROUNDS))
    return figures


def measure_jobs(hook: HorsiesHook, folder: Path, rounds: int) -> list[Figure]:
    from pyspark.sql import SparkSession

    print(f"  {MASTER}; warming up …", flush=True)
    direct = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    for number in range(WARM_UPS):
        through_the_operator(hook, number)
        count_and_aggregate(direct)

    totals, inside, directly = [], [], []
    for number in range(WARM_RUNS):
        total, function = through_the_operator(hook, WARM_UPS + number)
        totals.append(total)
        inside.append(total - function)
        directly.append(timed(lambda: count_and_aggregate(direct)))
    direct.stop()
    told("HorsiesOperator, warm", totals)
    told("a direct call on a warm session", directly)
    told("HorsiesOperator less its own function", inside)

    figures = []
    number = WARM_UPS + WARM_RUNS
    with EmbeddedSparkConnect(folder / "connect", master=MASTER) as connect:
        for way in ("spark_submit", "task_pyspark", "connect"):
            python = Path(sys.executable) if way == "connect" else spark_provider_python()
            ours, theirs = [], []
            # A venv of its own has its own pyspark, whose spark-submit comes first.
            path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
            at = {"PEER_WAY": way, "PEER_CONNECT": connect.url, "PATH": path, "PYSPARK_PYTHON": str(python)}
            with Peer("spark_peer.py", python, at) as peer:
                peer.seconds()
                for _ in range(rounds):
                    theirs.append(peer.seconds())
                    ours.append(statistics.median(through_the_operator(hook, number + each)[0] for each in range(3)))
                    number += 3
            told(way, theirs)
            figures.append(ratio(f"short_spark_vs_{way}", theirs, ours))
    return figures


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--lines", action="store_true", help="also what printing 100,000 lines costs")
    sys.exit(main(measure, options))
