"""The tasks of the trials. While one runs, it leaves signs of life in a file of its own."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from airflow_horsies.borrowed.horsies import find_assignment
from airflow_horsies.worker import TaskFault, horsies_app, progress, python_task
from tests.chaos import broken_worker

FOLDER = Path(os.environ["CHAOS_FOLDER"])
BEAT_SECONDS = 0.2
# Longer than anybody may need to hear of a cancel.
ENDLESS_SECONDS = 150.0

# Asked for, a worker and its children write into their log where they are.
faulthandler.register(signal.SIGUSR1)

broken_worker.apply(os.environ.get("CHAOS_BREAK"))
app = horsies_app(dead_after=timedelta(seconds=5))


@python_task(app, "chaos.work")
def work(*, key: str, seconds: float, fails: str = "", version: int = 1) -> dict[str, Any]:
    """Returns after a while what it was asked for and who did it; the first attempt of all ends with code ``fails``."""
    asked = {"key": key, "seconds": seconds, "fails": fails, "version": version}
    _leave_trace(asked)
    tried = FOLDER / "tried" / f"{key}.{version}"
    if fails and not tried.exists():
        tried.touch()
        raise TaskFault(fails, f"the first attempt fails, {_claim()}")
    _beat(key, seconds)
    return _answer(**asked)


@python_task(app, "chaos.until_cancelled")
def until_cancelled(*, key: str) -> dict[str, Any]:
    """Goes on until it is cancelled; once somebody was told so, the next one is short."""
    _beat(key, 0.1 if (FOLDER / "cancelled" / key).exists() else ENDLESS_SECONDS)
    return _answer(key=key)


def _answer(**asked: Any) -> dict[str, Any]:
    return {"asked": asked, "task": _task_id(), "claim": _claim()}


def _leave_trace(asked: dict[str, Any]) -> None:
    """A line for each time that something was run: what nobody may see of an item that has an outcome."""
    line = json.dumps({"task": _task_id(), "claim": _claim(), "asked": asked, "at": time.monotonic()})
    with (FOLDER / "ran" / f"{_task_id()}.{os.getpid()}").open("a") as file:
        file.write(f"{line}\n")


def _claim() -> str:
    """When horsies gave this task to this child; later claims of a task sort after it."""
    assignment = find_assignment()
    claimed_at = None if assignment is None else assignment.claimed_at
    return "" if claimed_at is None else claimed_at.astimezone(UTC).isoformat(timespec="microseconds")


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
