"""The client of the pages: a locked, slow or silent database delays a request by seconds and never blocks a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from airflow_horsies.client import calls
from airflow_horsies.client.client import Client
from airflow_horsies.client.moments import read_moments
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.client.steps import PlainTransaction
from airflow_horsies.core.batch import task_of_item
from airflow_horsies.core.log import READ_LINES, LogCursor, LogLine
from airflow_horsies.core.moments import Moments
from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState, TaskView
from airflow_horsies.db.connection import Database
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError
from airflow_horsies.ledger import item_pages, latest
from airflow_horsies.ledger.chunks import find_outcomes
from airflow_horsies.ledger.item_pages import ItemOrder, PlacedItem
from airflow_horsies.ledger.latest import Deployment, LatestIds
from airflow_horsies.ledger.submissions import read_submissions_of_tasks
from airflow_horsies.wire import reading
from airflow_horsies.wire.statements import SUMMARY_CHARS

T = TypeVar("T")

CONNECT_SECONDS = 5
# For a whole request, even if the server does not enforce its own limits.
READ_SECONDS = 15
# Cancelling a large batch takes many statements.
ACTION_SECONDS = 120
LIMITS = Limits(lock_seconds=3, statement_seconds=10)


__all__ = ["ACTION_SECONDS", "READ_SECONDS", "ItemOrder", "PageClient", "PlacedItem"]


class TimedSession(Session):
    """A session whose transactions have time limits, and whose connection is cut after a total time."""

    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(database, limits=LIMITS)
        self._ends_at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = False) -> T:
        try:
            return super().run(make_script, pipelined=pipelined)
        except DatabaseError as error:
            if time.monotonic() >= self._ends_at:
                raise DatabaseBusy(str(error)) from error
            raise

    def close(self) -> None:
        # Not while it is being cut: the descriptor of a closed socket may already belong to another.
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            super().close()

    def hang_up(self) -> None:
        with self._lock:
            super().hang_up()

    def _limited(self, script: Script[T]) -> Script[T]:
        if time.monotonic() >= self._ends_at:
            raise DatabaseBusy(f"No answer in time from {self.database.address}. Try again later.")
        return (yield from super()._limited(script))

    def _open(self) -> Any:
        connection = super()._open()
        if self._timer is None:
            self._timer = threading.Timer(max(self._ends_at - time.monotonic(), 0), self.hang_up)
            self._timer.daemon = True
            self._timer.start()
        return connection


class PageClient(Client):
    """The client of one request.

    :param seconds: how long the request may use the database in total.
    """

    def __init__(self, settings: ClientSettings, *, seconds: float = READ_SECONDS) -> None:
        database = settings.database
        database = replace(database, connect_args={**database.connect_args, "connect_timeout": CONNECT_SECONDS})
        super().__init__(
            replace(settings, database=database), session=TimedSession(database, seconds), migrate_seconds=0
        )

    @property
    def deployment(self) -> Deployment:
        """This deployment; submissions of others are neither shown nor cancelled."""
        return Deployment(self.namespace, self.settings.base_url)

    # -- what task instances submitted -----------------------------------------------------------------------------

    def read_latest_ids(self, key: TaskInstanceKey) -> LatestIds:
        own = self.deployment
        return self._read_submissions(lambda: latest.read_latest_ids(own, key), LatestIds(0, "{}"))

    def read_latest(self, key: TaskInstanceKey, *, ids: Collection[str] | None = None) -> list[Submission]:
        """The last submission of the task instance, by position."""
        own = self.deployment
        return self._read_submissions(lambda: latest.read_latest(own, key, ids=ids), [])

    def read_rounds(
        self,
        key: TaskInstanceKey,
        position: int,
        *,
        life: int | None = None,
        round_: int | None = None,
        limit: int = 1,
        in_chunks: bool | None = None,
    ) -> list[Submission]:
        """The submissions of the task instance at a position, newest first.

        :param in_chunks: whether the batch has chunks, if that is known.
        """
        own = self.deployment
        if self.read_latest_ids(key).has_chunks if in_chunks is None else in_chunks:
            return self.run(
                lambda: item_pages.read_item_rounds(own, key, position, life=life, round_=round_, limit=limit)
            )
        return self._read_submissions(
            lambda: latest.read_rounds(own, key, position, life=life, round_=round_, limit=limit), []
        )

    def read_submissions_of_tasks(self, ids: Collection[str]) -> list[Submission]:
        """The submissions of tasks, of this deployment and of others, newest first."""
        return self._read_submissions(lambda: read_submissions_of_tasks(ids), [])

    def read_moments(self, key: TaskInstanceKey, sent: Sequence[Submission], *, with_values: bool) -> Moments:
        """Signals, waits, callbacks and pauses of submissions of the task instance."""
        return read_moments(self, self.deployment, key, sent, with_values=with_values)

    # -- horsies' tasks ----------------------------------------------------------------------------------------------

    def count_states(self, ids: LatestIds) -> dict[TaskState, int]:
        """The number of items by state."""
        if not ids.has_chunks:
            return self.read(lambda wire: reading.count_states(wire, ids.array))
        # Before the outcomes: all outcomes of a chunk are written before it ends.
        states = self.read_states(ids.task_ids)
        return self.run(lambda: item_pages.count_item_states(ids.task_ids, states))

    def order_items(self, key: TaskInstanceKey, ids: LatestIds, order: ItemOrder) -> tuple[int, list[PlacedItem]]:
        """The number of items in a state, or of all, and one page of them."""
        own = self.deployment
        if not ids.has_chunks:
            total, shown = self.order_tasks(
                ids,
                sort=order.sort,
                descending=order.descending,
                state=order.state,
                limit=order.limit,
                offset=order.offset,
            )
            sent = {item.horsies_task_id: item for item in self.read_latest(key, ids=shown)}
            return total, [_placed(sent[task_id]) for task_id in shown if task_id in sent]
        if order.is_by_place:
            first, last = _places(order, ids.count)
            found = self.run(lambda: item_pages.page_items(own, key, first=first, last=last))
            return ids.count, found[::-1] if order.descending else found
        tasks, state = self.read_summaries(ids.task_ids), order.state
        found = self.run(lambda: item_pages.order_items(own, key, order, ids.task_ids, tasks))
        if state is None:
            return ids.count, found
        states = {task_id: task.state for task_id, task in tasks.items()}
        counts = self.run(lambda: item_pages.count_item_states(ids.task_ids, states))
        return counts.get(state, 0), found

    def read_items_as_tasks(
        self, refs: Collection[tuple[str, int | None]], *, values: bool = False, message_chars: int = SUMMARY_CHARS
    ) -> dict[tuple[str, int | None], TaskView]:
        """The tasks of items; a chunk is shown as the task of the item."""
        ids = {task_id for task_id, _ in refs}
        tasks = self.read_tasks(ids) if values else self.read_summaries(ids, message_chars=message_chars)
        in_chunks = [(task_id, number) for task_id, number in refs if number is not None]
        outcomes = self.run(lambda: find_outcomes(in_chunks, values=values)) if in_chunks else {}
        return {
            (task_id, number): task_of_item(tasks[task_id], outcomes.get((task_id, number)))
            if number is not None
            else tasks[task_id]
            for task_id, number in refs
            if task_id in tasks
        }

    def read_item_lines(
        self, submission: Submission, after: LogCursor | None = None, limit: int = READ_LINES
    ) -> list[LogLine]:
        """The next lines of a task, or of an item of a chunk."""
        task_id, number = submission.horsies_task_id, submission.number
        if number is None:
            return self.read_lines(task_id, after=after, limit=limit)
        return self.run(lambda: item_pages.read_item_lines(task_id, number, after or LogCursor(), limit))

    def cancel_item(self, key: TaskInstanceKey, submission: Submission) -> CancelOutcome:
        """Cancel one item of a chunk."""
        own, task_id, number = self.deployment, submission.horsies_task_id, submission.number or 0
        return self.write(
            partial(item_pages.cancel_item, deployment=own, task_instance=key, task_id=task_id, number=number)
        )

    def order_tasks(
        self, ids: LatestIds, *, sort: str, descending: bool, state: TaskState | None, limit: int, offset: int
    ) -> tuple[int, list[str]]:
        """The number of tasks in a state, or of all, and the ids of one page of them."""
        return self.read(
            lambda wire: reading.order_tasks(
                wire, ids.array, sort=sort, descending=descending, state=state, limit=limit, offset=offset
            )
        )

    def read_summaries(self, ids: Collection[str], *, message_chars: int = SUMMARY_CHARS) -> dict[str, TaskView]:
        """Tasks without arguments and results, with messages truncated to ``message_chars``."""
        return self.read(lambda wire: reading.read_tasks(wire, ids, whole=False, message_chars=message_chars))

    def list_recent_tasks(self, *, limit: int) -> TaskPage:
        return self.read(lambda wire: reading.list_tasks(wire, limit=limit, with_attempts=True))

    def find_failed(self, *, window: int, limit: int, before: PageCursor | None) -> FailedTasks:
        return self.read(lambda wire: reading.find_failed(wire, window=window, limit=limit, before=before))

    def _read_submissions(self, make_script: Callable[[], Script[T]], otherwise: T) -> T:
        return self.drive(calls.read_current(self.scope, make_script, otherwise=otherwise))

    def _run_plain(self, step: PlainTransaction) -> Any:
        if step.limits is None:
            return super()._run_plain(step)
        # Without the time limit of the request: a migration that is cut starts again with the next request.
        session = Session(self.settings.database, limits=LIMITS)
        try:
            return session.run(step.make_script)
        finally:
            session.close()


def _placed(submission: Submission) -> PlacedItem:
    return PlacedItem(
        place=submission.position,
        life=submission.life,
        round=submission.round,
        task_id=submission.horsies_task_id,
        number=None,
    )


def _places(order: ItemOrder, count: int) -> tuple[int, int]:
    """The first and the last place of a page."""
    if not order.descending:
        return order.offset, order.offset + order.limit - 1
    # An item that is no longer requested has the place -1.
    return max(count - order.offset - order.limit, 0), count - order.offset - 1
