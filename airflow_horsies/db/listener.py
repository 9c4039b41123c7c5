"""Connections that receive a notification at the end of every task, workflow and callback."""

from __future__ import annotations

import select
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, LiteralString

import psycopg

from airflow_horsies.db.connection import Database
from airflow_horsies.db.driver import AnswerTimer
from airflow_horsies.db.errors import DRIVER_ERRORS
from airflow_horsies.db.limits import LIMITS, Limits
from airflow_horsies.exceptions import (
    ListenUnavailable,
)

# Sent when a task becomes COMPLETED, FAILED, CANCELLED or EXPIRED, with its id as payload. A hint to read the table.
TASK_DONE: Final = "task_done"
# Sent when a workflow, also one inside another, becomes COMPLETED, FAILED, CANCELLED, PAUSED or EXPIRED, with its id.
WORKFLOW_DONE: Final = "workflow_done"
# Sent when a callback is answered or void, with its id.
CALLBACK_DONE: Final = "airflow_horsies_callback"
Channel = Literal["task_done", "workflow_done", "airflow_horsies_callback"]
LISTEN: Final[Mapping[Channel, LiteralString]] = {
    TASK_DONE: "LISTEN task_done",
    WORKFLOW_DONE: "LISTEN workflow_done",
    CALLBACK_DONE: "LISTEN airflow_horsies_callback",
}
POOLER_TRIALS = 3


class Listener:
    """A connection that listens to some channels. Open it before reading the tables."""

    def __init__(self, database: Database, *channels: Channel) -> None:
        self._database = database
        self._channels = channels or (TASK_DONE,)
        self._connection = database.connect(database.listen_args)
        try:
            with database.translated():
                self._connection.autocommit = True
                self._require_session()
                for channel in self._channels:
                    self._execute(LISTEN[channel])
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_seconds: float) -> set[str]:
        """The ids of tasks, workflows and callbacks that ended; empty after the timeout."""
        with self._database.translated():
            return (
                self._wait_psycopg(timeout_seconds)
                if self._database.use_psycopg
                else self._wait_psycopg2(timeout_seconds)
            )

    def _wait_psycopg(self, timeout_seconds: float) -> set[str]:
        # stop_after returns all messages of one packet, not only the first.
        return {
            message.payload
            for message in self._connection.notifies(timeout=timeout_seconds, stop_after=1)
            if message.channel in self._channels
        }

    def _wait_psycopg2(self, timeout_seconds: float) -> set[str]:
        connection = self._connection
        connection.poll()
        if not connection.notifies:
            select.select([connection], [], [], timeout_seconds)
            connection.poll()
        ended = {message.payload for message in connection.notifies if message.channel in self._channels}
        connection.notifies.clear()
        return ended

    def close(self) -> None:
        with suppress(*DRIVER_ERRORS):
            self._connection.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _require_session(self) -> None:
        """Detect a pooler in transaction mode, which accepts LISTEN and never delivers a notification.

        A pooler makes up the process id that it reports to its client. In transaction mode it gives our last backend to
        the next client, or serves us from another backend.
        """
        backend = self._backend_pid(self._connection)
        if backend == self._connection.info.backend_pid:
            return
        for _ in range(POOLER_TRIALS):
            other = self._database.connect(self._database.listen_args)
            try:
                lent = self._backend_pid(other) == backend
                again = None if lent else self._backend_pid(self._connection)
            finally:
                other.close()
            if lent or again != backend:
                raise ListenUnavailable(LISTEN_THROUGH_POOLER.format(address=self._database.address))

    @staticmethod
    def _backend_pid(connection: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid: int = cursor.fetchone()[0]
            return pid

    def _execute(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)


async def listen_async(database: Database, limits: Limits = LIMITS) -> psycopg.AsyncConnection[Any]:
    """An asynchronous connection that listens to all channels, with the same rules as Listener."""
    connection = await database.connect_async(database.listen_args)
    try:
        with database.translated():
            await _require_session_async(database, connection, limits)
            await listen_again(connection, limits)
    except BaseException:
        await connection.close()
        raise
    return connection


async def listen_again(connection: psycopg.AsyncConnection[Any], limits: Limits = LIMITS) -> None:
    """Repeat LISTEN to get an answer: a lost connection is as silent as an idle one."""
    with AnswerTimer(connection, limits.answer_seconds):
        for listen in LISTEN.values():
            await connection.execute(listen)


async def _require_session_async(database: Database, connection: psycopg.AsyncConnection[Any], limits: Limits) -> None:
    backend = await _backend_pid_async(connection, limits)
    if backend == connection.info.backend_pid:
        return
    for _ in range(POOLER_TRIALS):
        async with await database.connect_async(database.listen_args) as other:
            lent = await _backend_pid_async(other, limits) == backend
            if lent or await _backend_pid_async(connection, limits) != backend:
                raise ListenUnavailable(LISTEN_THROUGH_POOLER.format(address=database.address))


async def _backend_pid_async(connection: psycopg.AsyncConnection[Any], limits: Limits) -> int:
    with AnswerTimer(connection, limits.answer_seconds):
        row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    pid: int = row[0] if row else 0
    return pid


LISTEN_THROUGH_POOLER = (
    "Notifications from {address} cannot arrive, because a connection pooler in transaction mode is in between. Set "
    "listen_host and listen_port in the connection's extra to the address of the Postgres server itself, or set "
    '"listen": "poll" to wait by polling.'
)
