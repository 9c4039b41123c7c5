"""Shows the log lines and progress of horsies tasks in the log of the Airflow task that waits for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.client.waiting import wait_until_stopped
from airflow_horsies.core.batch import NO_NUMBER
from airflow_horsies.core.log import LogCursor, LogLine, Progress, TaskNews, lines_of_each
from airflow_horsies.core.wording import describe_progress
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError

PROGRESS_SECONDS = 10.0

StoredSeen = Mapping[str, Sequence[int]]


class TaskLog:
    """
    Shows log lines and progress of tasks, each line once: ``seen`` contains the last line shown of each task.

    :param logger: the logger of the operator or the trigger.
    :param task_ids: the tasks.
    :param numbered: show the position of the task with each line.
    :param places: the places of the items of chunks, by task and number.
    :param names: what to call each task; the caller may add to it.
    """

    def __init__(
        self,
        logger: Any,
        task_ids: Sequence[str],
        seen: dict[str, LogCursor],
        *,
        numbered: bool = False,
        places: Mapping[tuple[str, int], int] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.seen = seen
        self._log = logger
        self._task_ids = task_ids
        self._positions = {task_id: position for position, task_id in enumerate(task_ids)} if numbered else {}
        self._places = places or {}
        self._names = {} if names is None else names
        self._progress: dict[str, Progress] = {}
        self._progress_at: dict[str, float] = {}
        self._is_readable = True

    def show(self, news: Mapping[str, TaskNews]) -> None:
        for task_id, update in news.items():
            self._show_lines(task_id, update.lines)
            if update.progress is not None:
                self._show_progress(task_id, update.progress)

    def follow(self, client: Client) -> None:
        """Show new lines. Raises only passing errors: the caller's wait meets them, too, and retries."""
        if not self._is_readable:
            return
        try:
            self.show(client.read_news(self._cursors(self._task_ids)))
        except TRANSIENT_ERRORS:
            raise
        except HorsiesError as error:
            self._is_readable = False
            self._log.warning("The log of the task cannot be shown: %s", error)

    def finish(self, client: Client, *, cancelled: Collection[str] = ()) -> None:
        """Show the remaining lines, including those that cancelled tasks write while they stop."""
        try:
            wait_until_stopped(client, cancelled)
            unread: Sequence[str] = self._task_ids
            while unread:
                unread = self._show_page(unread, client.read_news(self._cursors(unread)))
        except HorsiesError as error:
            self._log.warning("The last log lines of the task cannot be shown: %s", error)

    async def finish_async(self, client: AsyncClient) -> None:
        """As :meth:`finish`, in a triggerer, of tasks that ended by themselves."""
        try:
            unread: Sequence[str] = self._task_ids
            while unread:
                unread = self._show_page(unread, await client.read_news(self._cursors(unread)))
        except HorsiesError as error:
            self._log.warning("The last log lines of the task cannot be shown: %s", error)

    def _show_page(self, task_ids: Sequence[str], news: Mapping[str, TaskNews]) -> list[str]:
        """Show the lines; returns the tasks that may have more."""
        for task_id, update in news.items():
            self._show_lines(task_id, update.lines)
        limit = lines_of_each(len(task_ids))
        return [task_id for task_id, update in news.items() if len(update.lines) >= limit]

    def _cursors(self, task_ids: Sequence[str]) -> dict[str, LogCursor]:
        return {task_id: self._cursor(task_id) for task_id in task_ids}

    def _show_lines(self, task_id: str, lines: Sequence[LogLine]) -> None:
        for line in lines:
            if line.cursor > self._cursor(task_id):
                label = self._label(task_id, f"attempt {line.attempt}", item=line.item)
                self._log.log(_level(line.level), "[%s] %s", label, line.text)
                self.seen[task_id] = line.cursor

    def _show_progress(self, task_id: str, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._progress_at.get(task_id, -PROGRESS_SECONDS) < PROGRESS_SECONDS:
            return
        shown = self._progress.get(task_id)
        text = describe_progress(progress)
        if shown is None or describe_progress(shown) != text:
            label = self._label(task_id)
            item = f"[{label}] " if label else ""
            self._log.info("%sProgress: %s", item, text)
            self._progress[task_id] = progress
            self._progress_at[task_id] = now

    def _label(self, task_id: str, *more: str, item: int | None = None) -> str:
        if not self._places:
            place = self._positions.get(task_id)
        else:
            place = self._places.get((task_id, NO_NUMBER if item is None else item))
        if place is not None:
            return ", ".join([f"item {place}", *more])
        if task_id in self._names:
            return ", ".join([self._names[task_id], *more])
        chunk = [f"chunk {self._positions[task_id]}"] if self._places and task_id in self._positions else []
        return ", ".join([*chunk, *more])

    def _cursor(self, task_id: str) -> LogCursor:
        return self.seen.get(task_id, LogCursor())


def store_seen(seen: Mapping[str, LogCursor]) -> dict[str, list[int]]:
    """The form in which a trigger and its event carry it."""
    return {task_id: [cursor.attempt, cursor.number] for task_id, cursor in seen.items()}


def load_seen(stored: StoredSeen) -> dict[str, LogCursor]:
    return {task_id: LogCursor(*cursor) for task_id, cursor in stored.items()}


def _level(name: str) -> int:
    return logging.getLevelNamesMapping().get(name.upper()) or logging.INFO
