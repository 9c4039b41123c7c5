"""Sending tasks: the hook beside horsies' own send(), beside the raw limits of the table, and beside two peers.

.venv/bin/python -m benchmarks.submitting [--tasks 20000] [--singles 300] [--rounds 7]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskSpec
from airflow_horsies.wire.encoding import Command, encode_task
from benchmarks.databases import durable_postgres, make_database, open_hook
from benchmarks.figures import Figure, main, ratio, take_turns, timed, told
from benchmarks.peers import PGQUEUER, PROCRASTINATE, Peer, peer_python

UNNEST = (Path(__file__).parent / "unnest.sql").read_bytes()
SHARED = [field.name for field in dataclasses.fields(Command)]
OWN = [
    *("id", "kwargs", "enqueue_sha", "command_fingerprint", "input_digest"),
    *("idempotency_digest", "rerun_disposition", "rerun_input"),
]
PLURALS = {name: name for name in ("kwargs", "max_retries", "task_options")} | {
    "priority": "priorities", "delay_seconds": "delays"
}  # fmt: skip
TESTS = Path(__file__).parents[1] / "tests" / "integration"


def specs(count: int) -> list[TaskSpec]:
    return [TaskSpec(task_name="add", kwargs={"a": number, "b": 1}) for number in range(count)]


def columns(count: int) -> dict[str, list[Any]]:
    """The parameters of unnest.sql, whose names are those of the fields of a task in the plural."""
    tasks = [encode_task(spec) for spec in specs(count)]
    columns = {name: [getattr(task.command, name) for task in tasks] for name in SHARED}
    columns |= {name: [getattr(task, name) for task in tasks] for name in OWN}
    return {PLURALS.get(name, f"{name}s"): values for name, values in columns.items()}


def many(hook: HorsiesHook, count: int) -> Callable[[], float]:
    def run() -> float:
        batch = specs(count)
        return timed(lambda: hook.enqueue_tasks(batch))

    return run


def chunked(hook: HorsiesHook, count: int) -> Callable[[], float]:
    """As many items, in chunks of 50."""

    def run() -> float:
        items = [{"a": number, "b": 1} for number in range(count)]
        return timed(lambda: hook.enqueue_items(TaskSpec(task_name="add"), items, chunk_size=50))

    return run


def unnest(connection: psycopg.Connection[Any], count: int) -> Callable[[], float]:
    """One statement with the same rows, made beforehand: what is left is Postgres."""

    def run() -> float:
        params = columns(count)
        begun = time.perf_counter()
        connection.execute(UNNEST, params)
        connection.commit()
        return time.perf_counter() - begun

    return run


def copy(connection: psycopg.Connection[Any], count: int) -> Callable[[], float]:
    """The rows of the statement above, as COPY brings them: sent once, read back, removed, and copied in."""

    def run() -> float:
        params = columns(count)
        ids = params["ids"]
        connection.execute(UNNEST, params)
        found = connection.execute("SELECT * FROM horsies_tasks WHERE id = ANY(%s)", (ids,))
        names = [column.name for column in found.description or ()]
        rows = found.fetchall()
        connection.execute("DELETE FROM horsies_tasks WHERE id = ANY(%s)", (ids,))
        connection.commit()
        into = sql.SQL("COPY horsies_tasks ({}) FROM STDIN").format(sql.SQL(", ").join(map(sql.Identifier, names)))
        begun = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy(into) as copying:
            for row in rows:
                copying.write_row(row)
        connection.commit()
        return time.perf_counter() - begun

    return run


def measure_many(postgres: EmbeddedPostgres, hook: HorsiesHook, info: dict[str, Any], given: Any) -> list[Figure]:
    pythons = {
        "procrastinate": peer_python(PROCRASTINATE, "psycopg[binary]"),
        "pgqueuer": peer_python(PGQUEUER, "asyncpg"),
    }
    with contextlib.ExitStack() as open_things:
        connection = open_things.enter_context(psycopg.connect(**info))
        # The worker that made the tables has stopped.
        connection.execute("DELETE FROM horsies_worker_states")
        connection.commit()
        peers = {}
        for name, python in pythons.items():
            postgres.create_database(f"bench_{name}")
            at = {"PEER_DATABASE": postgres.dsn(f"bench_{name}")}
            peers[name] = open_things.enter_context(Peer(f"{name}_peer.py", python, at))
        runs = {
            "many": many(hook, given.tasks),
            "chunked": chunked(hook, given.tasks),
            "unnest": unnest(connection, given.tasks),
            "copy": copy(connection, given.tasks),
            "procrastinate": lambda: peers["procrastinate"].seconds(given.tasks),
            "pgqueuer": lambda: peers["pgqueuer"].seconds(given.tasks),
        }
        for run in runs.values():
            run()
        said = take_turns(runs, given.rounds)
    told(f"enqueue_many, {given.tasks:,} tasks", said["many"])
    for name in ("chunked", "unnest", "copy", "procrastinate", "pgqueuer"):
        told(name, said[name])
    return [
        *(
            ratio(f"enqueue_many_vs_{name}", said[name], said["many"])
            for name in said
            if name not in ("many", "chunked")
        ),
        *(ratio(f"enqueue_items_chunked_vs_{name}", said[name], said["chunked"]) for name in pythons),
        ratio("raw_copy_vs_pgqueuer", said["pgqueuer"], said["copy"]),
    ]


def measure_singles(hook: HorsiesHook, given: Any) -> list[Figure]:
    import contract_tasks

    number = iter(range(10**9))

    def send() -> None:
        assert contract_tasks.add.send(a=1, b=2).ok_value

    def enqueue() -> None:
        hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}))

    def submit() -> None:
        instance = TaskInstanceKey(dag_id="bench", run_id=f"run {next(number)}", task_id="add")
        hook.submit_task(
            TaskSpec(task_name="add", kwargs={"a": 1, "b": 2}), instance, AirflowTry(try_number=1,
            run_started_at=datetime.now(UTC)),
        )  # fmt: skip

    def some(run: Callable[[], None]) -> Callable[[], float]:
        return lambda: timed(lambda: [run() for _ in range(given.singles)]) / given.singles

    runs = {"send": some(send), "enqueue": some(enqueue), "submit": some(submit)}
    for run in runs.values():
        run()
    said = take_turns(runs, given.rounds)
    told("horsies' own send()", said["send"])
    told("hook.enqueue_task", said["enqueue"])
    told("hook.submit_task", said["submit"])
    return [ratio(f"{name}_vs_upstream_send", said[name], said["send"]) for name in ("submit", "enqueue")]


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_things:
        postgres = open_things.enter_context(durable_postgres(Path(folder) / "bench"))
        info = make_database(postgres, "bench")
        os.environ["HORSIES_DATABASE_URL"] = postgres.dsn("bench", scheme="postgresql+psycopg")
        sys.path.insert(0, str(TESTS))
        hook = open_things.enter_context(open_hook(info))
        return [*measure_singles(hook, given), *measure_many(postgres, hook, info, given)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=20_000)
    options.add_argument("--singles", type=int, default=300)
    options.add_argument("--rounds", type=int, default=7)
    sys.exit(main(measure, options))
