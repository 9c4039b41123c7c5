"""The short task, with a few lines of log, that a long-lived deployment runs again and again."""

from __future__ import annotations

from airflow_horsies.worker import horsies_app, python_task

app = horsies_app()


@python_task(app, "bench.talk")
def talk(*, number: int, lines: int) -> int:
    for line in range(lines):
        print(f"line {line} of task {number}, as long as lines of logs usually are")
    return number
