"""A task followed from a terminal: its lines, its attempts as they end, and how far it is."""

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
    """The lines of a task, or of one of its attempts; each is read once."""

    def __init__(self, client: Client, task_id: str, *, attempt: int | None = None) -> None:
        self._client = client
        self._task_id = task_id
        self._attempt = attempt
        self._seen = LogCursor() if attempt is None else LogCursor(attempt, -1)

    def read(self) -> Iterator[LogLine]:
        """Those that came since the last time."""
        while lines := self._client.read_lines(self._task_id, after=self._seen):
            for line in lines:
                if self._attempt is not None and line.attempt > self._attempt:
                    return
                self._seen = line.cursor
                yield line


class Watch:
    """Prints what changes about a task; a terminal has one line at the end that is drawn anew."""

    def __init__(self, client: Client, task_id: str) -> None:
        self._client = client
        self._task_id = task_id
        self._is_terminal = sys.stdout.isatty()
        self._told: set[str] = set()
        self._status = ""

    def look(self) -> None:
        task = self._client.read_task(self._task_id)
        # What a worker has told of before horsies has it would be told twice.
        recorded = {attempt.number for attempt in task.attempts}
        records = self._client.read_attempts([task.id]).get(task.id, ()) if recorded else ()
        self._tell_attempts(task, [record for record in records if record.number in recorded])
        if not task.state.is_terminal:
            self._tell_status(task.state, self._client.read_progress([task.id]).get(task.id))

    def finish(self, task: TaskView) -> None:
        self._tell_attempts(task, self._client.read_attempts([task.id]).get(task.id, ()))
        self._say(f"{task.task_name} {task.id}: {task.state}")

    def clear(self) -> None:
        """Leave no half line behind."""
        if self._is_terminal:
            print(TO_LINE_START, end="", flush=True)

    def _tell_attempts(self, task: TaskView, records: Sequence[AttemptRecord]) -> None:
        for line in describe_attempts(task, records):
            if line not in self._told:
                self._told.add(line)
                self._say(line)

    def _tell_status(self, state: TaskState, progress: Progress | None) -> None:
        status = str(state) if progress is None else f"{state}, {describe_progress(progress)}"
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            print(f"{TO_LINE_START}{_bar(progress)}{status}"[: columns + len(TO_LINE_START) - 1], end="", flush=True)
        elif status != self._status:
            print(status, flush=True)
        self._status = status

    def _say(self, line: str) -> None:
        self.clear()
        print(line, flush=True)


def explain_no_lines(task: TaskView, records: Sequence[AttemptRecord], attempt: int | None) -> str:
    """What it means that there is no line of a task, or of one of its attempts."""
    begun = {record.number for record in records} | {each.number for each in task.attempts}
    yet = "" if task.state.is_terminal else " yet"
    if attempt is not None and attempt in {record.number for record in records}:
        return f"Attempt {attempt} has written nothing{yet}."
    if attempt is not None and begun and attempt not in begun:
        return f"There is no attempt {attempt}{yet}; there are {', '.join(map(str, sorted(begun)))}."
    if records:
        return f"Its attempts have written nothing{yet}: the task is {task.state}."
    if begun or task.state is TaskState.RUNNING:
        return (
            "No line of it is kept: it ran on a worker that does not use airflow_horsies.worker, or began only now. "
            f"The task is {task.state}."
        )
    return f"Nothing is written{yet}: the task is {task.state}, and no worker has begun it."


def _bar(progress: Progress | None) -> str:
    if progress is None or progress.fraction is None:
        return ""
    filled = int(progress.fraction * BAR_CHARS)
    return f"[{'#' * filled}{'-' * (BAR_CHARS - filled)}] "
