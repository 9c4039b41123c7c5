"""Tasks that break chunks."""

from __future__ import annotations

import enum
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_horsies.worker import TaskFault, horsies_app, python_task

app = horsies_app(dead_after=timedelta(seconds=5))


class Code(enum.Enum):
    LATE = "LATE"


ODD_CODES: dict[str, Any] = {"enum": Code.LATE, "surrogate": "BAD\ud800CODE", "NUL": "BAD\x00CODE"}


@python_task(app, "consume")
def consume(*, order: dict[str, Any], folder: str, key: str) -> int:
    """Takes its rows one by one; the first call fails half-way."""
    path = Path(folder, key)
    is_first = not path.exists()
    path.touch()
    rows, total = order["rows"], 0
    while rows:
        total += rows.pop()
        if is_first and len(rows) == 1:
            raise TaskFault("FLAKY", "Half-way.")
    return total


@python_task(app, "odd_code")
def odd_code(*, how: str = "") -> str:
    if how in ODD_CODES:
        raise TaskFault(ODD_CODES[how], "A code that cannot be stored.")
    return "done"


@python_task(app, "work")
def work(*, seconds: float, file: str, key: str) -> str:
    """Leaves a line at its start and at its end."""
    for text in ("began", "ended"):
        with Path(file).open("a") as lines:
            lines.write(f"{key} {text}\n")
        time.sleep(seconds if text == "began" else 0)
    return key
