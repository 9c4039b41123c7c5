"""The short task of the benchmark, for a worker that knows nothing of our runtime."""

from __future__ import annotations

import os

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"])))


@app.task("bench.add")
def add(*, a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
