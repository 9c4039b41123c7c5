"""Spark Connect: the driver is a remote server."""

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

# A restarted server is back within seconds. pyspark's default is to retry for more than ten minutes.
RETRIES = 4
MAX_BACKOFF_MS = 1_000


class ConnectSpark:
    """One session per task on a Spark Connect server; tasks share only the server."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._session: Any = None
        # Sessions that the task has created from its own session.
        self._further_sessions: list[Any] = []
        self._lost: str | None = None
        self._progress: tuple[int, int, str] | None = None
        # The stages of a task, also of its earlier sessions: each item of a chunk may have one of its own.
        self._stages: dict[int, Any] = {}
        self._task_id: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="horsies-spark")

    def start(self) -> Future[None]:
        return self._thread.submit(self._warm_up)

    def open_session(self, task_id: str) -> Any:
        self._lost = None
        self._progress = None
        if task_id != self._task_id:
            self._task_id, self._stages = task_id, {}
        try:
            session = self._connect()
            # The first request, which creates the session on the server.
            session.version  # noqa: B018
        except Exception as error:
            raise SparkLost(
                f"The Spark Connect server {self._settings.address} does not answer: {first_line(error)}"
            ) from error
        self._session = session
        self._track_sessions_of(session)
        borrowed.make_connect_current(session)
        for name, value in self._settings.conf.items():
            session.conf.set(name, value)
        _register_source(session)
        session.addTag(f"horsies-{task_id}")
        session.registerProgressHandler(self._on_progress)
        return session

    def close_session(self) -> None:
        for session in self._take_sessions():
            self._release(session)

    def interrupt(self, task_id: str) -> None:
        session = self._session
        if session is not None:
            session.interruptTag(f"horsies-{task_id}")
            # Operations of threads that the task has started do not have the tag. The sessions belong to this task.
            for running in [made for made in (session, *self._further_sessions) if not made.is_stopped]:
                running.interruptAll()
                for stream in running.streams.active:
                    stream.stop()

    def poll_progress(self) -> tuple[int, int, str] | None:
        return self._progress

    def metrics(self, task_id: str) -> dict[str, float]:
        """A Connect server reports only the stages, tasks and bytes read of operations that the client waited for.

        It reports every few seconds what runs, so that a short operation may be missing. Read at the end of an attempt:
        the next one of the same task begins anew.
        """
        stages = list(self._stages.values())
        self._stages = {}
        if not stages:
            return {}
        return {
            "stages": len(stages),
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
            self._lost = f"The Spark Connect server {self._settings.address} no longer answers: {first_line(error)}"
            return True
        return False

    def explain_loss(self, failure: Failure) -> Failure:
        return Failure("SPARK_SESSION_LOST", self._lost or failure.message)

    def restart(self) -> None:
        for session in self._take_sessions():
            self._thread.submit(self._release, session)

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.close_session()

    def _warm_up(self) -> None:
        """Load the modules of the client and run a first job on the server."""
        try:
            session = self._connect()
            session.range(2).selectExpr("sum(id)").collect()
            self._release(session)
        except Exception as error:
            log.warning(
                "The Spark Connect server %s does not answer yet: %s", self._settings.address, first_line(error)
            )

    def _connect(self) -> Any:
        from pyspark.sql import SparkSession

        session: Any = SparkSession.builder.remote(self._settings.master).create()
        borrowed.limit_retries(session, max_retries=RETRIES, max_backoff_ms=MAX_BACKOFF_MS)
        return session

    def _track_sessions_of(self, session: Any) -> None:
        """Track further sessions: a server keeps a session while a stream of it runs, even without a client."""
        for name in ("newSession", "cloneSession"):
            if hasattr(type(session), name):
                setattr(session, name, partial(self._make_session, getattr(session, name)))

    def _make_session(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        session = make(*args, **kwargs)
        self._further_sessions.append(session)
        self._track_sessions_of(session)
        return session

    def _take_sessions(self) -> list[Any]:
        """Remove and return the sessions of the task."""
        sessions = [] if self._session is None else [*self._further_sessions, self._session]
        self._session, self._further_sessions = None, []
        return sessions

    def _release(self, session: Any) -> None:
        session.stop()
        # Without this, pyspark keeps a reference to every client until the process ends.
        atexit.unregister(borrowed.exit_handler(session))

    def _on_progress(self, stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        for stage in stages:
            self._stages[stage.stage_id] = stage
        finished = sum(stage.num_completed_tasks for stage in stages)
        total = sum(stage.num_tasks for stage in stages)
        if total:
            text = f"{finished} of {total} Spark tasks done, {inflight_tasks} running"
            self._progress = (finished, total, text)


def _register_source(session: Any) -> None:
    """Only registers the name. If the server lacks the package, the first read fails."""
    try:
        from airflow_horsies.source.data_source import HorsiesDataSource

        session.dataSource.register(HorsiesDataSource)
    except Exception as error:
        log.warning("The data source horsies is not available: %s", first_line(error))
