"""What the worker's reporter writes to, without a database."""

from __future__ import annotations

import json
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
        self.statuses: dict[str, str] = {}
        # The tasks of each statement that recorded attempts from start to end.
        self.batches: list[list[str]] = []
        self.cancelled: set[str] = set()
        self.good_until: datetime | None = None
        self.begun: dict[Key, Mapping[str, Any]] = {}
        self.lines: dict[Key, dict[int, str]] = {}
        self.earlier_lines: dict[Key, int] = {}
        self.progress: list[Mapping[str, Any]] = []
        self.ended: dict[Key, Mapping[str, Any]] = {}
        # By task and number: what was recorded of items, and which are dropped.
        self.items: dict[str, dict[int, Mapping[str, Any]]] = {}
        self.dropped: dict[str, list[int]] = {}
        self.line_items: dict[Key, dict[int, int | None]] = {}
        self.workers: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.version = 5
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
            "lock_running_task": lambda params: self._find_task(params["id"]),
            "find_migrations_table": lambda params: [{"found": True, "has_min_writer": True}],
            "read_version": lambda params: [{"version": self.version, "min_writer": 4}],
            "read_recorded_items": self._read_recorded,
            "read_dropped_items": lambda params: [{"dropped": self.dropped.get(params["horsies_task_id"], [])}],
            "record_items": self._record_items,
            "record_worker": self._record_worker,
            "append_item_lines": self._append_lines,
            "read_running_task": lambda params: self._find_task(params["id"]),
            "moved/find_claimed_tasks": self._find_claimed_tasks,
            "begin_attempt": self._begin_attempt,
            "record_attempts": self._record_attempts,
            "commit_lazily": lambda params: [],
            "append_lines": self._append_lines,
            "write_progress": self._write_progress,
            "end_attempt": self._end_attempt,
            "find_cancel_request": lambda params: [{"requested": params["horsies_task_id"] in self.cancelled}],
        }

    def texts(self, task_id: str, number: int = 1) -> list[tuple[int, str]]:
        return sorted(self.lines.get((task_id, number), {}).items())

    def _find_task(self, task_id: str) -> list[dict[str, Any]]:
        if task_id in self.lost:
            return []
        values = {"retry_count": self.retries.get(task_id), "good_until": self.good_until}
        return [{"id": task_id, "status": self.statuses.get(task_id, "RUNNING"), **values}]

    def _find_claimed_tasks(self, params: Mapping[str, Any]) -> Rows:
        return [row for task_id in params["ids"] for row in self._find_task(task_id)]

    def _record_attempts(self, params: Mapping[str, Any]) -> Rows:
        self.batches.append(list(params["ids"]))
        columns = ("ids", "attempts", "worker_ids", "started_ats", "finished_ats")
        rows = zip(*(params[name] for name in columns), strict=True)
        for task_id, number, worker_id, started_at, finished_at in rows:
            self.begun[task_id, number] = {"worker_id": worker_id, "started_at": started_at, "pid": params["pid"]}
            self.ended[task_id, number] = {"outcome": "COMPLETED", "finished_at": finished_at}
        return []

    def _begin_attempt(self, params: Mapping[str, Any]) -> Rows:
        key = params["horsies_task_id"], params["attempt"]
        again = key in self.begun and self.begun[key]["started_at"] == params["started_at"]
        self.begun[key] = params
        self.earlier_lines[key] = self.earlier_lines[key] if again else max(self.lines.get(key, {}), default=0)
        return [{"lines": self.earlier_lines[key]}]

    def _append_lines(self, params: Mapping[str, Any]) -> Rows:
        written = self.lines.setdefault((params["horsies_task_id"], params["attempt"]), {})
        for first_number, text in zip(params["first_numbers"], params["texts"], strict=True):
            for number, line in enumerate(text.split("\n"), start=first_number):
                written.setdefault(number, line)
        numbers = self.line_items.setdefault((params["horsies_task_id"], params["attempt"]), {})
        for first_number, item in zip(params["first_numbers"], params.get("items", []), strict=False):
            numbers[first_number] = item
        return []

    def _read_recorded(self, params: Mapping[str, Any]) -> Rows:
        recorded = self.items.get(params["horsies_task_id"], {})
        return [{"number": number, "outcome": item["outcome"]} for number, item in recorded.items()]

    def _record_items(self, params: Mapping[str, Any]) -> Rows:
        recorded = self.items.setdefault(params["horsies_task_id"], {})
        for item in json.loads(params["items"]):
            recorded.setdefault(item["number"], item)
        return []

    def _record_worker(self, params: Mapping[str, Any]) -> Rows:
        self.workers[params["hostname"], params["pid"]] = params
        return []

    def _write_progress(self, params: Mapping[str, Any]) -> Rows:
        self.progress.append(params)
        return []

    def _end_attempt(self, params: Mapping[str, Any]) -> Rows:
        self.ended[params["horsies_task_id"], params["attempt"]] = params
        return []
