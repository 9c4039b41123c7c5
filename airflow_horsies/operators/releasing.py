"""How an operator releases its horsies tasks: those that nobody else waits for are cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_horsies.airflow_instance import read_state
from airflow_horsies.client.client import Client
from airflow_horsies.core.submission import latest_task_ids
from airflow_horsies.core.task import CancelOutcome
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.operators.outcomes import describe_release, describe_release_failure

RELEASE_SECONDS = 30.0
# Airflow kills the process five seconds after it asked it to stop.
KILL_SECONDS = 4.7
RETRY_SECONDS = 0.5


class ReleasingOperator(BaseOperator):
    """Cancels the tasks of an operator when its time is up, and when Airflow stops its process on a user's request."""

    cancel_on_kill: bool
    _sent_ids: list[str]
    _instance: Any
    _is_uninterruptible: bool
    _stop_requested: bool

    def _client(self) -> Client:
        raise NotImplementedError

    def on_kill(self) -> None:
        """Airflow calls this when it stops the process: a user stops the work, or a component shuts down and the next
        try reattaches."""
        if not self.cancel_on_kill:
            return
        if self._is_uninterruptible:
            # Another connection of this process may hold the lock that a cancel needs until this method returns. A
            # submission checks the flag afterwards; a cancel needs no second one.
            self._stop_requested = True
            return
        self._cancel_if_given_up()

    def _release(self, client: Client, *, try_number: int | None, seconds: float = RELEASE_SECONDS) -> str | None:
        """Cancel the tasks that nobody else waits for. Returns why that is not possible now, if so.

        :param try_number: this try, if it cancels by itself and not on a user's request.
        """
        deadline = time.monotonic() + seconds
        with self._uninterrupted():
            while True:
                try:
                    ids = self._sent_ids or latest_task_ids(client.read_submissions(self._instance))
                    self._sent_ids = ids
                    released = self._release_ids(client, ids, try_number=try_number) if ids else {}
                except HorsiesError as error:
                    if time.monotonic() + RETRY_SECONDS > deadline:
                        return describe_release_failure(error)
                    time.sleep(RETRY_SECONDS)
                else:
                    return describe_release(set(released.values()))

    def _release_ids(
        self, client: Client, ids: Sequence[str], *, try_number: int | None
    ) -> Mapping[str, CancelOutcome]:
        return client.release_tasks(ids, self._instance, try_number=try_number)

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """A kill does not interrupt the block."""
        before, self._is_uninterruptible = self._is_uninterruptible, True
        try:
            yield
        finally:
            self._is_uninterruptible = before

    def _cancel_if_given_up(self) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        state = None if self._instance is None else read_state(self._instance)
        if state is None:
            self.log.warning("Airflow does not report why it stops this process. The horsies tasks continue.")
        elif not state.is_given_up:
            self.log.info("Airflow stops this process, but not the task instance. The horsies tasks continue.")
        else:
            problem = self._release_now(deadline - time.monotonic())
            if problem is not None:
                self.log.error("Airflow stops this process. %s", problem)

    def _release_now(self, seconds: float) -> str | None:
        try:
            with self._client() as client:
                return self._release(client, try_number=None, seconds=seconds)
        except HorsiesError as error:
            return describe_release_failure(error)
