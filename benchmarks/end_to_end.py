"""A thousand short tasks, from their sending to the last result: in one batch, in chunks, as mapped tasks, with Celery,
with procrastinate and with pgqueuer; and fifty in one DAG run, with and without Airflow's workers.

.venv/bin/python -m benchmarks.end_to_end [--tasks 1000] [--rounds 3] [--mapped-rounds 1]

All on the same cores: workers of two processes each, and Airflow's LocalExecutor.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from airflow_horsies.embedded.airflow_api import AirflowApi
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators import HorsiesBatchOperator
from benchmarks.databases import open_hook
from benchmarks.executing import task_context, with_hook
from benchmarks.figures import Figure, main, ratio, take_turns, timed, told
from benchmarks.peers import CELERY, PGQUEUER, PROCRASTINATE, Peer, peer_python

HERE = Path(__file__).parent
ENDED = ("success", "failed")
# Items in a chunk, of Celery's chunks too.
CHUNK = 50


def run_seconds(api: AirflowApi, dag_id: str, number: int, count: int) -> float:
    """How long Airflow says that a run took."""
    run_id = f"bench_{number}"
    api.trigger(dag_id, run_id, count=count)
    while (run := api.run(dag_id, run_id))["state"] not in ENDED:
        time.sleep(1)
    assert run["state"] == "success", run
    begun, ended = (datetime.fromisoformat(run[name]) for name in ("start_date", "end_date"))
    return (ended - begun).total_seconds()


def batch_seconds(hook: HorsiesHook, number: int, count: int, **params: Any) -> float:
    items = [{"a": each, "b": 1} for each in range(count)]
    operator = with_hook(HorsiesBatchOperator, hook, task_id="job", task_name="bench.add", items=items, **params)

    def run() -> None:
        assert operator.execute(task_context(number)) == list(range(1, count + 1))

    return timed(run)


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """A Redis that writes nothing to disk; its URL."""
    server = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if server is None:
        yield None
        return
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    options = ["--bind", LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no"]
    # Debian's package of tools has the server under another name, and the server goes by the name it is called.
    process = subprocess.Popen(["redis-server", *options], executable=server, stdout=subprocess.DEVNULL)
    try:
        yield f"redis://{LOOPBACK}:{port}/0"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def peers(postgres: EmbeddedPostgres, processes: int) -> Iterator[dict[str, Callable[[int], float]]]:
    """What each peer needs for so many items, its workers at work."""
    found: dict[str, Callable[[int], float]] = {}
    with contextlib.ExitStack() as opened:
        at = {"PEER_PROCESSES": str(processes)}
        url = opened.enter_context(redis())
        if url is None:
            print("  no Redis is installed (Debian: redis-tools): the figures with Celery are left out")
        else:
            python = peer_python(CELERY, "redis", "packaging")
            celery = opened.enter_context(Peer("celery_peer.py", python, at | {"PEER_REDIS": url}))
            found |= {"celery": celery.seconds, "celery_chunks": lambda count: celery.seconds(count, CHUNK)}
        for name, packages in (
            ("procrastinate", (PROCRASTINATE, "psycopg[binary]")),
            ("pgqueuer", (PGQUEUER, "asyncpg")),
        ):
            postgres.create_database(f"peer_{name}")
            database = {"PEER_DATABASE": postgres.dsn(f"peer_{name}")}
            peer = opened.enter_context(Peer(f"{name}_worker_peer.py", peer_python(*packages), at | database))
            found[name] = peer.seconds
        yield found


def measure_beside_peers(
    postgres: EmbeddedPostgres, hook: HorsiesHook, numbers: Iterator[int], given: argparse.Namespace
) -> list[Figure]:
    count = given.tasks
    with peers(postgres, given.processes) as others:
        runs: dict[str, Callable[[], float]] = {
            "batch": lambda: batch_seconds(hook, next(numbers), count),
            "chunked": lambda: batch_seconds(hook, next(numbers), count, chunk_size=CHUNK),
            **{name: partial(seconds, count) for name, seconds in others.items()},
        }
        for run in runs.values():
            run()
        said = take_turns(runs, given.rounds)
    for name, seconds in said.items():
        told(f"{count:,} short tasks, {name}", seconds)
    # Of Celery, a group is compared with a batch, and both of its ways with chunks.
    compared = {"batch": {"celery": "celery"}, "chunked": {"celery": "celery_group", "celery_chunks": "celery_chunks"}}
    each = {name: name for name in ("procrastinate", "pgqueuer")}
    return [
        ratio(f"batch_{count}{suffix}_vs_{shown}", said[name], said[ours])
        for ours, suffix in (("batch", ""), ("chunked", "_chunked"))
        for name, shown in (compared[ours] | each).items()
        if name in said
    ]


def measure_with_airflow(api: AirflowApi, numbers: Iterator[int], given: argparse.Namespace) -> list[Figure]:
    said: dict[str, list[float]] = {"batch": [], "chunked": [], "mapped": []}
    if not given.mapped_rounds:
        return []
    run_seconds(api, "bench_batch", next(numbers), 10)
    for _ in range(given.mapped_rounds):
        for kind, seconds in said.items():
            seconds.append(run_seconds(api, f"bench_{kind}", next(numbers), given.tasks))
            told(f"a DAG run of {given.tasks:,} tasks, {kind}", seconds[-1:])
    return [
        ratio(f"batch_{given.tasks}_vs_mapped", said["mapped"], said["batch"]),
        ratio(f"batch_{given.tasks}_chunked_vs_mapped", said["mapped"], said["chunked"]),
    ]


def measure_worker_free(api: AirflowApi, numbers: Iterator[int], given: argparse.Namespace) -> list[Figure]:
    """Fifty short tasks in one run, started and ended by the triggerer, and by workers."""
    runs: dict[str, Callable[[], float]] = {
        mode: lambda mode=mode: run_seconds(api, f"bench_{mode}", next(numbers), 50)  # type: ignore[misc]
        for mode in ("worker_free", "deferrable")
    }
    said = take_turns(runs, given.rounds)
    told("a DAG run with 50 worker-free tasks", said["worker_free"])
    told("a DAG run with 50 deferrable tasks", said["deferrable"])
    return [ratio("worker_free_run_vs_deferrable", said["deferrable"], said["worker_free"])]


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as open_things:
        folder = Path(name)
        folder.chmod(0o711)
        environ = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
        print("  starting Airflow …", flush=True)
        stack = open_things.enter_context(
            EmbeddedStack(
                folder / "stack", durable=True, dags_folder=HERE / "dags", worker_app="short_tasks:app",
                worker_environ=environ, all_admins=True,
                airflow_settings={"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"},
            )
        )  # fmt: skip
        info = stack.postgres.conninfo(stack.connection()["schema"])
        for number in range(given.processes - 1):
            open_things.enter_context(
                HorsiesWorker(
                    "short_tasks:app", conninfo=info, log=folder / f"worker-{number}.log", folder=folder,
                    environ=environ, command=SPARK_WORKER,
                )
            )  # fmt: skip
        api = open_things.enter_context(AirflowApi(stack.airflow.base_url))
        dags = ["bench_batch", "bench_chunked", "bench_mapped", "bench_worker_free", "bench_deferrable"]
        while api.missing_dags(dags):
            time.sleep(1)
        numbers = itertools.count()
        hook = open_things.enter_context(open_hook(info))
        return [
            *measure_beside_peers(stack.postgres, hook, numbers, given),
            *measure_worker_free(api, numbers, given),
            *measure_with_airflow(api, numbers, given),
        ]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=1_000)
    options.add_argument("--processes", type=int, default=2, help="of each worker")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--mapped-rounds", type=int, default=1, help="each takes minutes")
    sys.exit(main(measure, options))
