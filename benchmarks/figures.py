"""The figures: their names, what is aimed at, how two things are measured in turns, and how a figure is told."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure says in the table, and the bound it should keep."""

    says: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "times"
    # Told when the figure falls short.
    bounded_by: str = ""

    @property
    def wanted(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}"

    def is_met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


AIMS: dict[str, Aim] = {
    "short_spark_vs_spark_submit": Aim(
        "A short Spark job with a warm `HorsiesOperator`: times faster than `SparkSubmitOperator`", at_least=20
    ),
    "short_spark_vs_task_pyspark": Aim("… than `@task.pyspark`"),
    "short_spark_vs_connect": Aim("… than a fresh client of Spark Connect, whose server is warm"),
    "wake_p99_vs_polling": Aim(
        "Waking 1,000 waiters, from the commit of a task's end to the event of the trigger: p99, times faster than a "
        "trigger that polls at its default interval",
        at_least=100,
    ),
    "wake_p99_vs_polling_10000": Aim("… with 10,000 waiters"),
    "notifier_commit_1000_vs_1": Aim("The commit that notifies: time with 1,000 waiters relative to one", at_most=1.2),
    "bytes_per_waiter_10000": Aim("Memory of one of 10,000 waiters on one connection", at_most=60_000, unit="bytes"),
    "submit_vs_upstream_send": Aim(
        "`hook.submit_task`, with its record of the task instance: time relative to horsies' own `send()`",
        at_most=1.5,
        bounded_by="both commit once. The lock of the task instance, the look at its last life and its record are four "
        "more statements: the sooner a disk confirms a commit, the more they count",
    ),
    "enqueue_vs_upstream_send": Aim("`hook.enqueue_task`: time relative to `send()`"),
    "enqueue_many_vs_unnest": Aim(
        "`hook.enqueue_tasks`, 20,000 tasks: tasks per second relative to one raw INSERT from unnest of the same rows",
        at_least=0.6,
    ),
    "enqueue_many_vs_copy": Aim("… relative to COPY of the same rows", at_least=0.85),
    "enqueue_many_vs_procrastinate": Aim("… relative to procrastinate's `batch_defer`", at_least=1),
    "enqueue_many_vs_pgqueuer": Aim(
        "… relative to pgqueuer's bulk `enqueue`",
        at_least=1,
        bounded_by="a row of pgqueuer has 8 columns and no digest, one of horsies 30 columns and three digests: "
        "`raw_copy_vs_pgqueuer` is how far Postgres itself gets with those",
    ),
    "enqueue_items_chunked_vs_pgqueuer": Aim(
        "`hook.enqueue_items`, 20,000 items in chunks of 50: items per second relative to pgqueuer's bulk `enqueue`",
        at_least=10,
        bounded_by="half of the time is the check and the JSON of 20,000 items, a third is Postgres",
    ),
    "enqueue_items_chunked_vs_procrastinate": Aim("… relative to procrastinate's `batch_defer`"),
    "raw_copy_vs_pgqueuer": Aim(
        "COPY of the same rows of horsies, prepared beforehand, relative to pgqueuer's bulk `enqueue`"
    ),
    "short_task_rate_vs_plain_worker": Aim(
        "Short tasks per second of our worker relative to a plain worker of horsies with the same settings",
        at_least=0.95,
    ),
    "short_task_rate_defaults_vs_plain_worker": Aim("… each with its own defaults, tasks without Spark", at_least=1.25),
    "transactions_added_per_short_task": Aim(
        "Transactions that our runtime adds to a short task", at_most=1, unit="transactions"
    ),
    "transactions_per_short_task": Aim("Transactions per short task with our worker", unit="transactions"),
    "transactions_per_short_task_upstream": Aim("… with a plain worker", unit="transactions"),
    "statements_per_short_task": Aim(
        "Statements per short task with our worker, BEGIN and COMMIT included", unit="statements"
    ),
    "statements_per_short_task_upstream": Aim("… with a plain worker", unit="statements"),
    "wal_bytes_per_short_task": Aim("Bytes of WAL per short task with our worker", unit="bytes"),
    "wal_bytes_per_short_task_upstream": Aim("… with a plain worker", unit="bytes"),
    "batch_1000_vs_mapped": Aim(
        "1,000 short tasks through one `HorsiesBatchOperator`, whole DAG run: times faster than 1,000 mapped "
        "`PythonOperator`s on LocalExecutor (one round, as that takes minutes)"
    ),
    "batch_1000_vs_celery": Aim(
        "… times faster than a Celery group of 1,000 with Redis, from sending to the last result",
        bounded_by="Celery with Redis writes nothing to disk; horsies commits each claim, start and end",
    ),
    "batch_1000_vs_procrastinate": Aim("… than 1,000 jobs of procrastinate, until the last has ended"),
    "batch_1000_vs_pgqueuer": Aim("… than 1,000 jobs of pgqueuer"),
    "batch_1000_chunked_vs_celery_group": Aim(
        "1,000 short tasks through one `HorsiesBatchOperator` with `chunk_size=50`: times faster than a Celery group",
        at_least=3,
    ),
    "batch_1000_chunked_vs_celery_chunks": Aim("… than Celery's chunks of 50", at_least=0.5),
    "batch_1000_chunked_vs_procrastinate": Aim("… than 1,000 jobs of procrastinate, until the last has ended"),
    "batch_1000_chunked_vs_pgqueuer": Aim("… than 1,000 jobs of pgqueuer"),
    "batch_1000_chunked_vs_mapped": Aim(
        "… whole DAG run: times faster than 1,000 mapped `PythonOperator`s on LocalExecutor (one round)", at_least=100
    ),
    "throughput_under_readers": Aim(
        "Short tasks per second through a worker while three readers hold a snapshot for two minutes, relative to the "
        "same without them",
        at_least=0.9,
        bounded_by="Postgres keeps the rows of all tasks that ended since the oldest snapshot, and statements of "
        "horsies pass over them, with a plain worker as well: each claim, and the start and the end of each task, for "
        "which Postgres chooses the index of the worker. A chunk is one task for all its items",
    ),
    "worker_free_run_vs_deferrable": Aim(
        "50 short tasks with `worker_free=True`, whole DAG run: times faster than with `deferrable=True`, on "
        "LocalExecutor"
    ),
    "workflow_chain_20_vs_airflow_tasks": Aim(
        "A chain of 20 trivial nodes in one `HorsiesGraphOperator`, whole DAG run: times faster than 20 chained "
        "`PythonOperator`s on LocalExecutor",
        at_least=10,
    ),
    "submit_growth_1e5_vs_1e4": Aim("`hook.submit_task` with 10⁵ tasks in the database: time relative to 10⁴"),
    "submit_growth_1e6_vs_1e4": Aim("… with 10⁶", at_most=1.3),
    "read_growth_1e5_vs_1e4": Aim("`hook.read_task` with 10⁵ tasks: time relative to 10⁴"),
    "read_growth_1e6_vs_1e4": Aim("… with 10⁶", at_most=1.3),
    "list_growth_1e6_vs_1e4": Aim("`hook.list_tasks`, a page of 100, with 10⁶ tasks: time relative to 10⁴"),
    "run_page_growth_1e6_vs_1e4": Aim("What the page of a DAG run reads, with 10⁶ tasks: time relative to 10⁴"),
    "spark_source_vs_jdbc": Aim(
        '`spark.read.format("horsies")`, 1,000,000 attempts in one part, the default of both: times faster than '
        "Spark's JDBC source",
        at_least=1,
    ),
    "spark_source_vs_jdbc_2_parts": Aim("… both in two parts, on two cores", at_least=1),
    "spark_source_vs_jdbc_0_4": Aim("… in one part, in the tables of horsies 0.4", at_least=1),
    "spark_source_vs_jdbc_0_4_2_parts": Aim("… both in two parts", at_least=1),
}


# What the README shows.
SHORT: dict[str, str] = {
    "short_spark_vs_spark_submit": "A short Spark job: faster than `SparkSubmitOperator`",
    "wake_p99_vs_polling": "Waking 1,000 waiting tasks (p99): faster than polling",
    "batch_1000_vs_mapped": "1,000 short tasks in one batch: faster than 1,000 mapped tasks on LocalExecutor",
    "batch_1000_chunked_vs_mapped": "… in chunks of 50",
    "batch_1000_chunked_vs_celery_group": "… faster than a Celery group with Redis",
    "submit_vs_upstream_send": "Submitting exactly once: time relative to a plain `send()` of horsies",
    "submit_growth_1e6_vs_1e4": "Submitting with 10⁶ tasks in the database: time relative to 10⁴",
    "bytes_per_waiter_10000": "Memory per waiting task",
    "enqueue_many_vs_pgqueuer": "Sending 20,000 tasks: tasks per second relative to pgqueuer",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio with its spread: the median of the rounds, the least, the most."""

    name: str
    value: float
    low: float
    high: float


def timed(run: Run) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def take_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each says, round by round; who begins changes, as the first of a round is often the slower."""
    said: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            said[name].append(runs[name]())
    return said


def ratio(name: str, over: Sequence[float], under: Sequence[float]) -> Figure:
    """``over`` divided by ``under``, of the same rounds."""
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    return Figure(name, statistics.median(ratios), ratios[0], ratios[-1])


def told(name: str, seconds: Sequence[float]) -> None:
    middle = statistics.median(seconds)
    unit, factor = ("ms", 1e3) if middle < 1 else ("s", 1)
    print(
        f"  {name:<58} {middle * factor:9,.2f} {unit}  "
        f"({min(seconds) * factor:,.2f} to {max(seconds) * factor:,.2f}, {len(seconds)} rounds)",
        flush=True,
    )


def main(measure: Callable[[argparse.Namespace], list[Figure]], arguments: argparse.ArgumentParser) -> int:
    """Measure, tell, and write the figures where ``--out`` says, for ``python -m benchmarks``."""
    arguments.add_argument("--out", type=Path, help="a file for the figures")
    given = arguments.parse_args()
    quiet()
    figures = measure(given)
    for each in figures:
        print(f"{each.name}: {spell(each.value)} ({spell(each.low)} to {spell(each.high)})", flush=True)
    if given.out:
        given.out.write_text(json.dumps([[each.name, each.value, each.low, each.high] for each in figures]))
    return 0


def quiet() -> None:
    """Only errors are logged."""
    logging.disable(logging.WARNING)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def spell(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
