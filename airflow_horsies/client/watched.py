"""A session in a thread that nobody can cancel: its connection is cut when the server does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_horsies.db.connection import Database
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.session import Session
from airflow_horsies.db.statement import Script

T = TypeVar("T")

# Of a large batch: a statement may write or read a hundred thousand tasks.
LIMITS = Limits(statement_seconds=120.0, answer_seconds=150.0, idle_seconds=60.0)
LOOK_SECONDS = 5.0


class WatchedSession(Session):
    """A session whose statements have time limits, also if the server does not enforce them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, limits=LIMITS)
        self._seconds = LIMITS.answer_seconds
        self._asked_at = 0.0
        self._lock = threading.Lock()

    def run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = False) -> T:
        is_over = threading.Event()
        self._asked_at = time.monotonic()
        threading.Thread(target=self._watch, args=(is_over,), name="horsies-watch", daemon=True).start()
        try:
            return super().run(make_script, pipelined=pipelined)
        finally:
            is_over.set()

    def close(self) -> None:
        # Not while it is being cut: the descriptor of a closed socket may already belong to another.
        with self._lock:
            super().close()

    def _watch(self, is_over: threading.Event) -> None:
        while not is_over.wait(min(LOOK_SECONDS, self._seconds / 2)):
            if time.monotonic() - self._asked_at >= self._seconds:
                with self._lock:
                    self.hang_up()
                self._asked_at = time.monotonic()

    def _limited(self, script: Script[T]) -> Script[T]:
        limited = super()._limited(script)
        try:
            statement = next(limited)
            while True:
                self._asked_at = time.monotonic()
                statement = limited.send((yield statement))
        except StopIteration as stop:
            # The commit follows.
            self._asked_at = time.monotonic()
            outcome: T = stop.value
            return outcome
