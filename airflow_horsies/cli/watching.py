"""Follows a task in a terminal: its log lines, its attempts and its progress."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

from airflow_horsies.client.client import Client
from airflow_horsies.core.log import LogCursor, LogLine, Progress
from airflow_horsies.core.task import AttemptRecord, TaskState, TaskView
from airflow_horsies.core.wording import describe_attempts, describe_progress

BAR_CHARS = 30
TO_LINE_START = "\r\x1b[K"


class NewLines:
    """Reads the lines of a task, or of one of its attempts or items, each line once."""

    def __init__(self, client: Client, task_id: str, *, attempt: int | None = None, item: int | None = None) -> None:
        self._item = item
        self._client = client
        self._task_id = task_id
        self._attempt = attempt
        self._seen = LogCursor() if attempt is None else LogCursor(attempt, -1)

    def read(self) -> Iterator[LogLine]:
        """The lines since the last call."""
        while lines := self._client.read_lines(self._task_id, after=self._seen):
            for line in lines:
                if self._attempt is not None and line.attempt > self._attempt:
                    return
                self._seen = line.cursor
                if self._item in (None, line.item):
                    yield line


class Watch:
    """Prints changes of a task. On a terminal it redraws a status line at the end."""

    def __init__(self, client: Client, task_id: str) -> None:
        self._client = client
        self._task_id = task_id
        self._is_terminal = sys.stdout.isatty()
        self._printed: set[str] = set()
        self._status = ""

    def look(self) -> None:
        task = self._client.read_task(self._task_id)
        # An attempt that a worker has reported but horsies has not recorded yet would be printed twice.
        recorded = {attempt.number for attempt in task.attempts}
        records = self._client.read_attempts([task.id]).get(task.id, ()) if recorded else ()
        self._print_attempts(task, [record for record in records if record.number in recorded])
        if not task.state.is_terminal:
            self._print_status(task.state, self._client.read_progress([task.id]).get(task.id))

    def finish(self, task: TaskView) -> None:
        self._print_attempts(task, self._client.read_attempts([task.id]).get(task.id, ()))
        self._print_line(f"{task.task_name} {task.id}: {task.state}")

    def clear(self) -> None:
        """Erase the status line."""
        if self._is_terminal:
            print(TO_LINE_START, end="", flush=True)

    def _print_attempts(self, task: TaskView, records: Sequence[AttemptRecord]) -> None:
        for line in describe_attempts(task, records):
            if line not in self._printed:
                self._printed.add(line)
                self._print_line(line)

    def _print_status(self, state: TaskState, progress: Progress | None) -> None:
        status = str(state) if progress is None else f"{state}, {describe_progress(progress)}"
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            print(f"{TO_LINE_START}{_bar(progress)}{status}"[: columns + len(TO_LINE_START) - 1], end="", flush=True)
        elif status != self._status:
            print(status, flush=True)
        self._status = status

    def _print_line(self, line: str) -> None:
        self.clear()
        print(line, flush=True)


def explain_no_lines(task: TaskView, records: Sequence[AttemptRecord], attempt: int | None) -> str:
    """Explain why a task, or one of its attempts, has no log lines."""
    begun = {record.number for record in records} | {item.number for item in task.attempts}
    yet = "" if task.state.is_terminal else " yet"
    if attempt is not None and attempt in {record.number for record in records}:
        return f"Attempt {attempt} has written nothing{yet}."
    if attempt is not None and begun and attempt not in begun:
        return f"There is no attempt {attempt}{yet}. Attempts: {', '.join(map(str, sorted(begun)))}."
    if records:
        return f"The attempts have written nothing{yet}. The task is {task.state}."
    if begun or task.state is TaskState.RUNNING:
        return (
            f"There are no log lines. The task is {task.state}. Its worker does not use airflow_horsies.worker, or has "
            "not reported yet."
        )
    return f"There are no log lines{yet}. The task is {task.state}, and no worker has started it."


def _bar(progress: Progress | None) -> str:
    if progress is None or progress.fraction is None:
        return ""
    filled = int(progress.fraction * BAR_CHARS)
    return f"[{'#' * filled}{'-' * (BAR_CHARS - filled)}] "
