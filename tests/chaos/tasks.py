"""The tasks of the trials. While one runs, it leaves signs of life in a file of its own."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from airflow_horsies.worker import TaskFault, horsies_app, progress, python_task
from airflow_horsies.worker.attempt import find_assignment

FOLDER = Path(os.environ["CHAOS_FOLDER"])
BEAT_SECONDS = 0.2
# Longer than anybody may need to hear of a cancel.
ENDLESS_SECONDS = 150.0

# Asked for, a worker and its children write into their log where they are.
faulthandler.register(signal.SIGUSR1)

app = horsies_app(dead_after=timedelta(seconds=5))


@python_task(app, "chaos.work")
def work(*, key: str, seconds: float, fails_first: bool = False) -> dict[str, str]:
    """Returns the key after a while; ``fails_first`` fails the first attempt of all."""
    tried = FOLDER / "tried" / key
    if fails_first and not tried.exists():
        tried.touch()
        raise TaskFault("TRY_AGAIN", "the first attempt fails")
    _beat(key, seconds)
    return {"key": key}


@python_task(app, "chaos.until_cancelled")
def until_cancelled(*, key: str) -> dict[str, str]:
    """Goes on until it is cancelled; once somebody was told so, the next one is short."""
    _beat(key, 0.1 if (FOLDER / "cancelled" / key).exists() else ENDLESS_SECONDS)
    return {"key": key}


def _beat(key: str, seconds: float) -> None:
    assignment = find_assignment()
    task_id = assignment.task_id if assignment else "by-hand"
    end = time.monotonic() + seconds
    path = FOLDER / "beats" / f"{task_id}.{os.getpid()}"
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
