"""One synchronous connection that reconnects."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from airflow_horsies.db.backoff import jittered
from airflow_horsies.db.connection import Database
from airflow_horsies.db.driver import T, open_pipeline, run
from airflow_horsies.db.errors import DRIVER_ERRORS, needs_new_connection, should_rerun
from airflow_horsies.db.limits import Limits
from airflow_horsies.db.statement import Script

RERUN_PAUSES_SECONDS = (0.2, 2.0)


class Session:
    """One synchronous connection, opened on first use and reopened after a loss.

    :param limits: enforced by the server for each statement, so that nothing keeps waiting there after a disconnect.
    """

    def __init__(self, database: Database, *, limits: Limits | None = None) -> None:
        self.database = database
        self._limits = limits
        self._connection: Any = None

    def run(self, make_script: Callable[[], Script[T]], *, pipelined: bool = False) -> T:
        """Run a script in one transaction, and again from the start if it was interrupted.

        If the connection is lost during the commit, its outcome is unknown. So every script must be idempotent.

        :param pipelined: wait for the server only when the script reads rows. Not for texts of several commands.
        """
        with self.database.translated():
            for pause_seconds in (*RERUN_PAUSES_SECONDS, None):
                connection = self._open()
                try:
                    with open_pipeline(connection) if pipelined else nullcontext() as pipeline:
                        outcome = run(connection, self._limited(make_script()), pipeline)
                        connection.commit()
                    return outcome
                except DRIVER_ERRORS as error:
                    _roll_back(connection)
                    if needs_new_connection(error, connection):
                        self.close()
                    if pause_seconds is None or not should_rerun(error, connection):
                        raise
                    time.sleep(jittered(pause_seconds))
                except BaseException:
                    _roll_back(connection)
                    raise
        raise AssertionError("The last run returns or raises.")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

    def hang_up(self) -> None:
        """End a wait for an answer on this connection; called from another thread."""
        connection = self._connection
        if connection is not None:
            with suppress(OSError, *DRIVER_ERRORS), socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def _limited(self, script: Script[T]) -> Script[T]:
        if self._limits is not None:
            yield self._limits.statement
        return (yield from script)

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = self.database.connect()
        return self._connection


def _roll_back(connection: Any) -> None:
    with suppress(*DRIVER_ERRORS):
        connection.rollback()
