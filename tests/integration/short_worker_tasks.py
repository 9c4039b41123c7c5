"""Tasks without Spark, most of them short and silent."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from airflow_horsies.worker import horsies_app, python_task

app = horsies_app(dead_after=timedelta(seconds=5))


@python_task(app, "add")
def add(*, a: int, b: int) -> int:
    return a + b


@python_task(app, "nap")
def nap(*, seconds: float, text: str = "") -> float:
    if text:
        print(text, flush=True)
    time.sleep(seconds)
    return seconds


@python_task(app, "fail_once")
def fail_once(*, marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        raise LookupError("not yet")
    return "found"


@python_task(app, "die_once")
def die_once(*, marker: str) -> str:
    """Kills its own process the first time, before anything is reported."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"
