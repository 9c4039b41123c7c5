"""How much faster is enqueue_many than one INSERT per transaction? Both in one run, on one durable Postgres.

.venv/bin/python benchmarks/enqueue.py [--tasks 20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from airflow.sdk import Connection

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.statements import Wire

INIT = Path(__file__).parents[1] / "tests" / "integration" / "upstream_init.py"


def specs(count: int) -> list[TaskSpec]:
    return [TaskSpec(task_name="add", kwargs={"a": number, "b": 1}) for number in range(count)]


def seconds_of_many(hook: HorsiesHook, count: int) -> float:
    batch = specs(count)
    begun = time.perf_counter()
    ids = hook.enqueue_many(batch)
    elapsed = time.perf_counter() - begun
    assert len(set(ids)) == count
    return elapsed


def seconds_of_single(hook: HorsiesHook, count: int) -> float:
    """The rows are encoded beforehand and only the statements are timed, which favours this side."""
    statements = [Wire(hook.horsies_schema).enqueue_tasks([encode_task(spec)]) for spec in specs(count)]
    with psycopg.connect(**hook._postgres.connect_args) as connection:
        begun = time.perf_counter()
        for statement in statements:
            connection.execute(statement.sql.encode(), statement.params)
            connection.commit()
        return time.perf_counter() - begun


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tasks", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--no-fsync", action="store_true", help="as the tests run it: commits cost less")
    given = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedPostgres(Path(folder) / "bench", durable=not given.no_fsync) as postgres,
    ):
        url = postgres.dsn(scheme="postgresql+psycopg")
        subprocess.run([sys.executable, INIT], env={**os.environ, "HORSIES_DATABASE_URL": url}, check=True)
        info = postgres.conninfo()
        connection = Connection(
            conn_id="bench",
            conn_type="horsies",
            host=info["host"],
            port=info["port"],
            login=info["user"],
            password=info["password"],
            schema=info["dbname"],
        )
        with HorsiesHook("bench", connection=connection) as hook:
            single_count = max(given.tasks // 10, 100)
            ratios = []
            for number in range(1, given.rounds + 1):
                single = single_count / seconds_of_single(hook, single_count)
                many = given.tasks / seconds_of_many(hook, given.tasks)
                ratios.append(many / single)
                print(
                    f"round {number}: enqueue_many {many:,.0f}/s, one INSERT per transaction {single:,.0f}/s, "
                    f"ratio {ratios[-1]:.1f}",
                    flush=True,
                )
    print(json.dumps({"enqueue_many_vs_single": round(statistics.median(ratios), 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
