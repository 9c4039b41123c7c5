"""The hook of the pages: a database that is locked, slow or silent costs a request some seconds, never a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from airflow_horsies.connected_hook import LedgerBehind
from airflow_horsies.database import Database, Limits, Session
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import latest
from airflow_horsies.ledger.latest import Deployment, LatestIds
from airflow_horsies.ledger.submissions import SINCE, read_submissions_of_tasks
from airflow_horsies.models import FailedTasks, PageCursor, Submission, TaskInstanceKey, TaskPage, TaskState, TaskView
from airflow_horsies.wire import scripts
from airflow_horsies.wire.statement import Script
from airflow_horsies.wire.statements import SUMMARY_CHARS

T = TypeVar("T")

CONNECT_SECONDS = 5
# For all of a request, also where the server itself cannot keep time.
READ_SECONDS = 15
# Cancelling a large batch takes many statements.
ACTION_SECONDS = 120
LIMITS = Limits(lock_seconds=3, statement_seconds=10)


class TimedSession(Session):
    """A session whose transactions have time limits, and whose connection is cut when its own time is up."""

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
        # Never while it is being cut: the number of a closed socket is soon that of another.
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
            raise DatabaseBusy(f"{self.database.address} did not answer in time")
        return (yield from super()._limited(script))

    def _open(self) -> Any:
        connection = super()._open()
        if self._timer is None:
            self._timer = threading.Timer(max(self._ends_at - time.monotonic(), 0), self.hang_up)
            self._timer.daemon = True
            self._timer.start()
        return connection


class PageHook(HorsiesHook):
    """HorsiesHook for a request.

    :param seconds: how long the request may use the database in all.
    """

    def __init__(self, horsies_conn_id: str, *, seconds: float = READ_SECONDS, **kwargs: Any) -> None:
        super().__init__(horsies_conn_id, **kwargs)
        self._seconds = seconds

    @property
    def deployment(self) -> Deployment:
        """What another one submitted is neither shown nor cancelled."""
        return Deployment(self.namespace, self.base_url)

    # -- what task instances submitted -----------------------------------------------------------------------------

    def latest_ids(self, key: TaskInstanceKey) -> LatestIds:
        own = self.deployment
        return self._read_submissions(lambda: latest.read_latest_ids(own, key), LatestIds(0, "{}"))

    def latest(self, key: TaskInstanceKey, *, ids: Collection[str] | None = None) -> list[Submission]:
        """What the task instance submitted last, by position."""
        own = self.deployment
        return self._read_submissions(lambda: latest.read_latest(own, key, ids=ids), [])

    def rounds(
        self,
        key: TaskInstanceKey,
        position: int,
        *,
        life: int | None = None,
        round_: int | None = None,
        limit: int = 1,
    ) -> list[Submission]:
        """What it submitted under a position, newest first."""
        own = self.deployment
        return self._read_submissions(
            lambda: latest.read_rounds(own, key, position, life=life, round_=round_, limit=limit), []
        )

    def submissions_of_tasks(self, ids: Collection[str]) -> list[Submission]:
        """The task instances behind tasks, of this deployment and of others, newest first."""
        return self._read_submissions(lambda: read_submissions_of_tasks(ids), [])

    # -- horsies' tasks ----------------------------------------------------------------------------------------------

    def count_states(self, ids: LatestIds) -> dict[TaskState, int]:
        return self._read(lambda wire: scripts.count_states(wire, ids.array))

    def order_tasks(
        self, ids: LatestIds, *, sort: str, descending: bool, state: TaskState | None, limit: int, offset: int
    ) -> tuple[int, list[str]]:
        """How many of them there are in a state, or at all, and the ids of a page of them."""
        return self._read(
            lambda wire: scripts.order_tasks(
                wire, ids.array, sort=sort, descending=descending, state=state, limit=limit, offset=offset
            )
        )

    def summaries(self, ids: Collection[str], *, message_chars: int = SUMMARY_CHARS) -> dict[str, TaskView]:
        """Tasks without arguments and results, and with as much of each message."""
        return self._read(lambda wire: scripts.read_tasks(wire, ids, whole=False, message_chars=message_chars))

    def recent_tasks(self, *, limit: int) -> TaskPage:
        return self._read(lambda wire: scripts.list_tasks(wire, limit=limit, with_attempts=True))

    def failed_tasks(self, *, window: int, limit: int, before: PageCursor | None) -> FailedTasks:
        return self._read(lambda wire: scripts.find_failed(wire, window=window, limit=limit, before=before))

    def _read_submissions(self, make_script: Callable[[], Script[T]], otherwise: T) -> T:
        read = partial(self._read_current, SINCE, make_script, otherwise)
        try:
            return self._session.run(read)
        except LedgerBehind:
            self._migrate()
        return self._session.run(read)

    def _migrate(self) -> None:
        """For as long as it takes: cut with the request, it would begin again with the next one."""
        session = Session(self._postgres, limits=LIMITS)
        try:
            session.run(self._make_ledger)
        finally:
            session.close()

    @cached_property
    def _postgres(self) -> Database:
        database = self._make_database(self.connection)
        return replace(database, connect_args={**database.connect_args, "connect_timeout": CONNECT_SECONDS})

    @cached_property
    def _session(self) -> Session:
        return TimedSession(self._postgres, self._seconds)
