"""The short task of the benchmark."""

from __future__ import annotations

import os

from airflow_horsies.worker import horsies_app, python_task

PREFETCH = "BENCH_PREFETCH"

app = horsies_app(**({"prefetch_buffer": int(os.environ[PREFETCH])} if PREFETCH in os.environ else {}))


@python_task(app, "bench.add")
def add(*, a: int, b: int) -> int:
    return a + b
