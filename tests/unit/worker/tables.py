"""What the worker's reporter writes to, without a database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from airflow_horsies.db.statement import Rows, Script
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.wire.schema import detect_schema
from tests.unit.driving import MOVED, drive

Key = tuple[str, int]


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.005)


class Tables:
    """Just enough of horsies' tables and ours to be reported to; in the place of a Session."""

    def __init__(self) -> None:
        self.retries: dict[str, int] = {}
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        self.good_until: datetime | None = None
        self.begun: dict[Key, Mapping[str, Any]] = {}
        self.lines: dict[Key, dict[int, str]] = {}
        self.progress: list[Mapping[str, Any]] = []
        self.ended: dict[Key, Mapping[str, Any]] = {}
        self.migrated = 0
        self.runs = 0
        # Raised instead of running, and raised after all was written, as when a connection breaks in a commit.
        self.down: Exception | None = None
        self.breaking: list[Exception] = []
        self.hanging = threading.Event()
        self.hanging.set()
        self.hung_up = 0

    def run(self, make_script: Callable[[], Script[Any]], *, pipelined: bool) -> Any:
        self.hanging.wait(30)
        self.runs += 1
        if self.down is not None:
            raise self.down
        if make_script is ledger_schema.create:
            self.migrated += 1
            return None
        if make_script is detect_schema:
            return MOVED
        outcome = drive(make_script(), self.answers).outcome
        if self.breaking:
            raise self.breaking.pop(0)
        return outcome

    def hang_up(self) -> None:
        self.hung_up += 1
        self.hanging.set()

    @property
    def answers(self) -> dict[str, Any]:
        return {
            "read_running_task": self._read_running_task,
            "begin_attempt": self._begin_attempt,
            "commit_lazily": lambda params: [],
            "append_lines": self._append_lines,
            "write_progress": self._write_progress,
            "end_attempt": self._end_attempt,
            "find_cancel_request": lambda params: [{"requested": params["horsies_task_id"] in self.cancelled}],
        }

    def texts(self, task_id: str, number: int = 1) -> list[tuple[int, str]]:
        return sorted(self.lines.get((task_id, number), {}).items())

    def _read_running_task(self, params: Mapping[str, Any]) -> Rows:
        if params["id"] in self.lost:
            return []
        return [{"retry_count": self.retries.get(params["id"]), "good_until": self.good_until}]

    def _begin_attempt(self, params: Mapping[str, Any]) -> Rows:
        key = params["horsies_task_id"], params["attempt"]
        self.begun[key] = params
        return [{"lines": max(self.lines.get(key, {}), default=0)}]

    def _append_lines(self, params: Mapping[str, Any]) -> Rows:
        written = self.lines.setdefault((params["horsies_task_id"], params["attempt"]), {})
        for first_number, text in zip(params["first_numbers"], params["texts"], strict=True):
            for number, line in enumerate(text.split("\n"), start=first_number):
                written.setdefault(number, line)
        return []

    def _write_progress(self, params: Mapping[str, Any]) -> Rows:
        self.progress.append(params)
        return []

    def _end_attempt(self, params: Mapping[str, Any]) -> Rows:
        self.ended[params["horsies_task_id"], params["attempt"]] = params
        return []
