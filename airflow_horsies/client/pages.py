"""The client of the pages: a locked, slow or silent database delays a request by seconds and never blocks a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

from airflow_horsies.client import calls
from airflow_horsies.client.calls import PlainTransaction
from airflow_horsies.client.client import Client
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.core.paging import FailedTasks, PageCursor, TaskPage
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.db.connection import Database
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError
from airflow_horsies.ledger import latest
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
    ) -> list[Submission]:
        """The submissions of the task instance at a position, newest first."""
        own = self.deployment
        return self._read_submissions(
            lambda: latest.read_rounds(own, key, position, life=life, round_=round_, limit=limit), []
        )

    def read_submissions_of_tasks(self, ids: Collection[str]) -> list[Submission]:
        """The submissions of tasks, of this deployment and of others, newest first."""
        return self._read_submissions(lambda: read_submissions_of_tasks(ids), [])

    # -- horsies' tasks ----------------------------------------------------------------------------------------------

    def count_states(self, ids: LatestIds) -> dict[TaskState, int]:
        return self.read(lambda wire: reading.count_states(wire, ids.array))

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
