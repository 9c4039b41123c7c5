"""A ``horsies worker`` as a separate process."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from airflow_horsies.core.environment import DATABASE_URL
from airflow_horsies.embedded.airflow import inherited_environ
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.process import GuardedProcess

HORSIES_WORKER = ("horsies.core.cli", "worker")
SPARK_WORKER = ("airflow_horsies.worker",)
LIVE_SECONDS = 180.0
# On SIGTERM, horsies waits for running tasks for up to 300 s.
STOP_GRACE_SECONDS = 8.0


class HorsiesWorker:
    """``horsies worker MODULE:APP`` on a database; as a context manager, it waits until the worker is live.

    :param app: the horsies app, as ``package.module:app``.
    :param conninfo: keyword arguments for ``psycopg.connect``; the app gets them as a URL in
        ``HORSIES_DATABASE_URL``, not on a command line.
    :param log: the log file.
    :param folder: the working directory; modules in it can be imported.
    :param processes: the number of children that run tasks; 1 for Spark, as a crash of one child ends all of them. None
        leaves it to the command.
    :param environ: more environment variables.
    :param python: the interpreter of an environment with horsies.
    :param command: HORSIES_WORKER, or SPARK_WORKER with our own defaults.
    :param options: more options of the command.
    """

    def __init__(
        self,
        app: str,
        *,
        conninfo: Mapping[str, Any],
        log: Path,
        folder: Path,
        processes: int | None = 1,
        environ: Mapping[str, str] | None = None,
        python: Path = Path(sys.executable),
        loglevel: str = "INFO",
        command: Sequence[str] = HORSIES_WORKER,
        options: Sequence[str] = (),
    ) -> None:
        self._conninfo = dict(conninfo)
        self._started_at: object = None
        url = "postgresql+psycopg://{user}:{password}@{host}:{port}/{dbname}".format_map(self._conninfo)
        self.process = GuardedProcess(
            "The horsies worker",
            [
                *(str(python), "-m", *command, app),
                *(() if processes is None else ("--processes", str(processes))),
                *("--loglevel", loglevel, *options),
            ],
            log=log,
            environ=inherited_environ() | {DATABASE_URL: url} | dict(environ or {}),
            folder=folder,
            grace_seconds=STOP_GRACE_SECONDS,
        )

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_live()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the worker without waiting; it first creates or migrates horsies' tables."""
        with psycopg.connect(**self._conninfo) as connection:
            row = connection.execute("SELECT clock_timestamp()").fetchone()
        self._started_at = row[0] if row else None
        self.process.start()

    def wait_live(self, timeout_seconds: float = LIVE_SECONDS) -> None:
        """Wait until the worker has reported itself in ``horsies_worker_states``."""
        give_up = time.monotonic() + timeout_seconds
        with psycopg.connect(**self._conninfo, autocommit=True) as connection:
            while not self._reported(connection):
                if not self.process.running:
                    raise EmbeddedError(
                        f"The horsies worker ended with exit code {self.process.exit_code}.{self.process.log_tail()}"
                    )
                if time.monotonic() > give_up:
                    raise EmbeddedError(
                        f"The horsies worker is not live after {timeout_seconds:.0f} s.{self.process.log_tail()}"
                    )
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop the worker, its children and their JVMs."""
        self.process.stop()

    def _reported(self, connection: psycopg.Connection[Any]) -> bool:
        try:
            found = connection.execute(
                "SELECT 1 FROM horsies_worker_states WHERE pid = %s AND snapshot_at >= %s",
                (self.process.pid, self._started_at),
            ).fetchone()
        except psycopg.errors.UndefinedTable:
            return False
        return found is not None
