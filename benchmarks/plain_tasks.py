"""What a task costs that knows nothing of our runtime."""

from __future__ import annotations

import os

from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, TaskError, TaskResult

from benchmarks.printing import print_lines

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name="plain", priority=1)],
    )
)


@app.task("bench.plain_lines", queue_name="plain")
def lines(*, number: int, work: int) -> TaskResult[float, TaskError]:
    return TaskResult(ok=print_lines(number, work))
