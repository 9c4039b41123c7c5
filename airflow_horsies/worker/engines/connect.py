"""Spark Connect: the driver is a server somewhere else, and a session is a conversation with it."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from airflow_horsies.borrowed import pyspark as borrowed
from airflow_horsies.worker.errors import Failure, SparkLost, first_line
from airflow_horsies.worker.settings import SparkSettings

log = logging.getLogger(__name__)

# A server that is restarted is back within some seconds; pyspark's own patience is more than ten minutes.
RETRIES = 4
MAX_BACKOFF_MS = 1_000


class ConnectSpark:
    """One session per task on a Spark Connect server; nothing of it is shared but the server."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._session: Any = None
        # Those that the task has made from its own.
        self._further_sessions: list[Any] = []
        self._lost: str | None = None
        self._progress: tuple[int, int, str] | None = None
        self._stages: dict[int, Any] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="horsies-spark")

    def start(self) -> Future[None]:
        return self._thread.submit(self._warm_up)

    def open_session(self, task_id: str) -> Any:
        self._lost = None
        self._progress = None
        self._stages = {}
        try:
            session = self._connect()
            # The first question to the server, which makes the session.
            session.version  # noqa: B018
        except Exception as error:
            raise SparkLost(f"{self._settings.address} does not answer: {first_line(error)}") from error
        self._session = session
        self._note_sessions_made_from(session)
        borrowed.make_connect_current(session)
        for name, value in self._settings.conf.items():
            session.conf.set(name, value)
        _register_source(session)
        session.addTag(f"horsies-{task_id}")
        session.registerProgressHandler(self._hear_progress)
        return session

    def close_session(self) -> None:
        for session in self._take_sessions():
            self._release(session)

    def interrupt(self, task_id: str) -> None:
        session = self._session
        if session is not None:
            session.interruptTag(f"horsies-{task_id}")
            # The tag does not reach what the task's own threads have started; the sessions are the task's alone.
            for running in [made for made in (session, *self._further_sessions) if not made.is_stopped]:
                running.interruptAll()
                for stream in running.streams.active:
                    stream.stop()

    def poll_progress(self) -> tuple[int, int, str] | None:
        return self._progress

    def metrics(self, task_id: str) -> dict[str, float]:
        """A Connect server tells a client little: the stages, tasks and bytes read of what it waited for."""
        stages = self._stages.values()
        if not stages:
            return {}
        return {
            "stages": len(self._stages),
            "tasks": sum(stage.num_completed_tasks for stage in stages),
            "input_bytes": sum(stage.num_bytes_read for stage in stages),
        }

    @property
    def is_lost(self) -> bool:
        session = self._session
        if session is None:
            return False
        try:
            session.version  # noqa: B018
        except Exception as error:
            self._lost = f"{self._settings.address} no longer answers: {first_line(error)}"
            return True
        return False

    def how_it_was_lost(self, failure: Failure) -> Failure:
        return Failure("SPARK_SESSION_LOST", self._lost or failure.message)

    def restart(self) -> None:
        for session in self._take_sessions():
            self._thread.submit(self._release, session)

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.close_session()

    def _warm_up(self) -> None:
        """Load what the client needs, and have the server run a first job."""
        try:
            session = self._connect()
            session.range(2).selectExpr("sum(id)").collect()
            self._release(session)
        except Exception as error:
            log.warning("Spark Connect at %s does not answer yet: %s", self._settings.address, first_line(error))

    def _connect(self) -> Any:
        from pyspark.sql import SparkSession

        session: Any = SparkSession.builder.remote(self._settings.master).create()
        borrowed.limit_retries(session, max_retries=RETRIES, max_backoff_ms=MAX_BACKOFF_MS)
        return session

    def _note_sessions_made_from(self, session: Any) -> None:
        """A server keeps a session as long as a stream of it runs, whether or not somebody still listens."""
        for name in ("newSession", "cloneSession"):
            if hasattr(type(session), name):
                setattr(session, name, partial(self._make_session, getattr(session, name)))

    def _make_session(self, make: Callable[..., Any], *given: Any, **named: Any) -> Any:
        session = make(*given, **named)
        self._further_sessions.append(session)
        self._note_sessions_made_from(session)
        return session

    def _take_sessions(self) -> list[Any]:
        """The task's sessions, which are forgotten here."""
        sessions = [] if self._session is None else [*self._further_sessions, self._session]
        self._session, self._further_sessions = None, []
        return sessions

    def _release(self, session: Any) -> None:
        session.stop()
        # Without this, pyspark holds on to every client until the process ends.
        atexit.unregister(borrowed.exit_handler(session))

    def _hear_progress(self, stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        for stage in stages:
            self._stages[stage.stage_id] = stage
        finished = sum(stage.num_completed_tasks for stage in stages)
        total = sum(stage.num_tasks for stage in stages)
        if total:
            told = f"{finished} of {total} Spark tasks done, {inflight_tasks} running"
            self._progress = (finished, total, told)


def _register_source(session: Any) -> None:
    """Only told here; whether the server has the package shows when a task reads."""
    try:
        from airflow_horsies.source.data_source import HorsiesDataSource

        session.dataSource.register(HorsiesDataSource)
    except Exception as error:
        log.warning("The data source horsies is not at hand: %s", first_line(error))
