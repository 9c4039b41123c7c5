"""Tasks without Spark on which chunks are tried."""

from __future__ import annotations

import enum
import logging
import os
import sys
import time
import uuid
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from airflow_horsies.worker import TaskFault, horsies_app, progress, python_task

app = horsies_app(dead_after=timedelta(seconds=5), exception_mapper={LookupError: "NOT_THERE"})
log = logging.getLogger("my.module")


class Code(enum.Enum):
    LATE = "LATE"


ODD_CODES: dict[str, Any] = {
    "enum": Code.LATE,
    "surrogate": "BAD\ud800CODE",
    "NUL": "BAD\x00CODE",
    "number": 7,
    "long": "LONG" * 1_000,
}


@python_task(app, "add", exception_mapper={ZeroDivisionError: "DIVIDED"})
def add(*, day: date, number: int = 1, how: str = "") -> dict[str, object]:
    print(f"number {number}")
    match how:
        case "fault":
            raise TaskFault("NO_DATA_YET", f"No data for {number}.")
        case "own":
            raise ValueError(f"no such number: {number}")
        case "mapped by the task":
            raise ZeroDivisionError("by zero")
        case "mapped by the app":
            raise LookupError("not there")
        case "not JSON":
            return {"x": object()}
        case "surrogate":
            return {"x": "\ud800"}
    return {"day": day, "number": number}


@python_task(app, "nothing")
def nothing(*, number: int) -> int:
    return number


@python_task(app, "fail_until")
def fail_until(*, folder: str, key: str, tries: int, code: str = "FLAKY") -> int:
    """Fails until it was called that often."""
    path = Path(folder, key)
    with path.open("a") as calls:
        calls.write(f"{time.monotonic()}\n")
    made = len(path.read_text().splitlines())
    if made < tries:
        raise TaskFault(code, f"Call {made}.")
    return made


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


@python_task(app, "nap")
def nap(*, seconds: float, file: str = "", key: str = "") -> str:
    """Says that it runs, and returns the name of this run."""
    token = uuid.uuid4().hex
    if file:
        with Path(file).open("a") as runs:
            runs.write(f"{key} {token} {os.getpid()}\n")
    time.sleep(seconds)
    return token


@python_task(app, "nap_until_late", stop_at_good_until=True)
def nap_until_late(*, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@python_task(app, "stubborn")
def stubborn(*, seconds: float) -> float:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(1)
        except BaseException:
            print("I go on")
    return seconds


@python_task(app, "talk")
def talk(*, number: int) -> None:
    print("printed by", number)
    log.info("logged by %s", number)
    print("without an end", number, end="")


@python_task(app, "show")
def show(*, seconds: float) -> None:
    progress(1, 3, "loading")
    time.sleep(seconds)


@python_task(app, "fork")
def fork(*, how: str, file: str) -> str:
    """Forks, and its copy does not end itself."""
    with Path(file).open("a") as runs:
        runs.write(f"{how}\n")
    if how != "no" and os.fork() == 0:
        if how == "raise":
            raise LookupError("in the copy")
        if how == "exit":
            sys.exit(3)
        return "copy"
    if how != "no":
        # Long enough for the copy to go on with the other items.
        time.sleep(1.5)
        return str(os.waitstatus_to_exitcode(os.wait()[1]))
    return "done"


@python_task(app, "echo")
def echo(*, value: JsonValue) -> JsonValue:
    return value


@python_task(app, "packed")
def packed(*, numbers: list[int]) -> list[int]:
    """As authors pack items by hand."""
    return [nothing(number=number) for number in numbers]
