"""Tasks that do harm, with the defaults of an app without Spark."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

from airflow_horsies.worker import TaskFault, horsies_app, python_task

app = horsies_app()


class Code(Enum):
    """As horsies accepts it for a task of its own."""

    BAD = "BAD"


CODES: dict[str, Any] = {"enum": Code.BAD, "NUL": "BAD\x00CODE", "surrogate": "BAD\ud800"}


@python_task(app, "fail_with")
def fail_with(*, number: int, code: str, file: str) -> int:
    """The third item fails."""
    with Path(file).open("a") as calls:
        calls.write(f"{number}\n")
    if number == 2:
        raise TaskFault(CODES[code], "It failed.")
    return number
