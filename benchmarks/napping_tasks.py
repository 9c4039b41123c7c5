"""The task of the trial of deferrals."""

from __future__ import annotations

import os
import time

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"])))


@app.task("bench.nap")
def nap(*, seconds: float) -> TaskResult[float, TaskError]:
    time.sleep(seconds)
    return TaskResult(ok=seconds)
