"""The short task of the benchmark."""

from __future__ import annotations

from airflow_horsies.worker import horsies_app, python_task

app = horsies_app()


@python_task(app, "bench.add")
def add(*, a: int, b: int) -> int:
    return a + b
