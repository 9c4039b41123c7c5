"""The tasks of the trials. While one runs, it leaves signs of life in a file of its own."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_horsies.borrowed.horsies import find_assignment
from airflow_horsies.worker import TaskFault, horsies_app, progress, python_task

FOLDER = Path(os.environ["CHAOS_FOLDER"])
BEAT_SECONDS = 0.2
# Longer than anybody may need to hear of a cancel.
ENDLESS_SECONDS = 150.0

# Asked for, a worker and its children write into their log where they are.
faulthandler.register(signal.SIGUSR1)

app = horsies_app(dead_after=timedelta(seconds=5))


@python_task(app, "chaos.work")
def work(*, key: str, seconds: float, fails: str = "", version: int = 1) -> dict[str, Any]:
    """Returns after a while what it was asked for and who did it; the first attempt of all ends with code ``fails``."""
    tried = FOLDER / "tried" / f"{key}.{version}"
    if fails and not tried.exists():
        tried.touch()
        raise TaskFault(fails, "the first attempt fails")
    _beat(key, seconds)
    return _answer(key=key, seconds=seconds, fails=fails, version=version)


@python_task(app, "chaos.until_cancelled")
def until_cancelled(*, key: str) -> dict[str, Any]:
    """Goes on until it is cancelled; once somebody was told so, the next one is short."""
    _beat(key, 0.1 if (FOLDER / "cancelled" / key).exists() else ENDLESS_SECONDS)
    return _answer(key=key)


def _answer(**asked: Any) -> dict[str, Any]:
    return {"asked": asked, "task": _task_id()}


def _task_id() -> str:
    assignment = find_assignment()
    return assignment.task_id if assignment else "by-hand"


def _beat(key: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    path = FOLDER / "beats" / f"{_task_id()}.{os.getpid()}"
    count = 0
    while True:
        # The monotonic clock is the same for all processes of a machine, whatever the time of day is said to be.
        path.write_text(str(time.monotonic()))
        print(f"beat {count} of {key}")
        progress(count)
        if time.monotonic() >= end:
            return
        time.sleep(BEAT_SECONDS)
        count += 1
