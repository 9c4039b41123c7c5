"""Spark with its driver in a JVM of this child: local, standalone, YARN or Kubernetes."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from typing import Any

from airflow_horsies.borrowed import pyspark as borrowed
from airflow_horsies.worker.engines.jvm import Jvm, JvmError, OnLine, remove_orphaned_folders
from airflow_horsies.worker.engines.status import SparkStatus
from airflow_horsies.worker.engines.surroundings import Surroundings
from airflow_horsies.worker.errors import MORE_MEMORY, Failure, SparkLost, first_line
from airflow_horsies.worker.settings import SparkSettings

log = logging.getLogger(__name__)

APP_NAME = "airflow-horsies"
SOURCE_NAME = "horsies"
PING_SECONDS = 5.0
EXIT_SECONDS = 2.0
# Spark exits with this code after an OutOfMemoryError in a thread.
OUT_OF_MEMORY_EXIT_CODE = 52


class ClassicSpark:
    """
    One SparkContext for all tasks of a child, with a separate session for each task.

    Calls that may block on the JVM run on a separate thread, so that a JVM that hangs does not block the others.
    """

    def __init__(self, settings: SparkSettings, on_line: OnLine) -> None:
        self._settings = settings
        self._on_line = on_line
        self._jvm: Jvm | None = None
        self._root: Any = None
        self._session: Any = None
        self._sessions: Any = None
        self._context: Any = None
        self._no_properties: Any = None
        self._status: SparkStatus | None = None
        self._surroundings: Surroundings | None = None
        self._source: Any = None
        self._ready: Future[Any] | None = None
        self._cleaned: Future[None] | None = None
        self._asked: Future[Any] | None = None
        self._asked_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="horsies-spark")

    # -- the session ---------------------------------------------------------------------------------------------

    def start(self) -> Future[Any]:
        """Start Spark on the main thread, without waiting."""
        remove_orphaned_folders()
        conf = {"spark.app.name": APP_NAME, **self._settings.full_conf(), "spark.master": self._settings.master}
        jvm = self._jvm = Jvm(conf, self._on_line)
        jvm.launch()
        self._ready = self._thread.submit(self._connect, jvm)
        return self._ready

    def open_session(self, task_id: str) -> Any:
        """Open a separate session for a task; waits while Spark is still starting."""
        root = self._healthy_root()
        session = root.newSession()
        context = root.sparkContext
        context.setJobGroup(task_id, f"horsies task {task_id}", interruptOnCancel=True)
        context.addJobTag(tag_of(task_id))
        self._make_current(session)
        if self._source is not None:
            borrowed.register_java_source(session, SOURCE_NAME, self._source)
        self._session = session
        return session

    def close_session(self) -> None:
        """Remove everything that the task left in Spark; mostly done while the child waits for its next task."""
        session, self._session = self._session, None
        if session is None:
            return
        if not self._is_alive():
            self.restart()
            return
        self._restore_python()
        # Job group, tags and other properties that the task has set for its thread.
        self._context.setLocalProperties(self._no_properties.clone())
        self._cleaned = self._thread.submit(_clean_up, self._root, self._surroundings)

    def restart(self) -> None:
        """Discard the JVM and start another one on the main thread, without waiting."""
        log.warning("The JVM of Spark is lost or hangs. Starting another one.")
        self.stop(gracefully=False)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="horsies-spark")
        self.start()

    def stop(self, *, gracefully: bool = True) -> None:
        jvm, self._jvm = self._jvm, None
        self._thread.shutdown(wait=False, cancel_futures=True)
        if jvm is not None:
            if gracefully:
                jvm.stop()
            else:
                jvm.kill()
        self._restore_python()
        borrowed.forget_jvm()
        self._root = self._session = self._ready = self._cleaned = self._asked = self._status = None

    # -- while a task runs ---------------------------------------------------------------------------------------

    def interrupt(self, task_id: str) -> None:
        """Cancel the Spark jobs of the task; may block."""
        root = self._root
        if self._session is None or not self._is_alive():
            return
        root.sparkContext.cancelJobsWithTag(tag_of(task_id))
        # Jobs of threads that the task has started do not have the tag. All running jobs belong to this task.
        root.sparkContext.cancelAllJobs()
        _stop_streams(root)

    def poll_progress(self) -> tuple[int, int, str] | None:
        """Spark tasks done, Spark tasks known, and a text, as requested by the previous call. Never blocks.

        A JVM that does not answer for a long time is killed. The task then fails and can be retried.
        """
        asked = self._asked
        if self._session is None or self._jvm is None or self._status is None:
            return None
        if asked is not None and not asked.done():
            if time.monotonic() - self._asked_at > self._settings.hang_seconds:
                log.error("The JVM of Spark has not answered for %.0f s. Killing it.", self._settings.hang_seconds)
                self._jvm.kill()
            return None
        self._asked_at = time.monotonic()
        self._asked = self._thread.submit(self._status.progress)
        if asked is None or asked.cancelled() or asked.exception() is not None:
            return None
        progress: tuple[int, int, str] | None = asked.result()
        return progress

    def metrics(self, task_id: str) -> dict[str, float]:
        """What the Spark jobs of the task have read, written and used."""
        if self._session is None or self._status is None or not self._is_alive():
            return {}
        try:
            return self._thread.submit(self._status.metrics, task_id).result(PING_SECONDS)
        except Exception as error:
            log.info("Reading the Spark metrics failed: %s", error)
            return {}

    @property
    def is_lost(self) -> bool:
        return self._session is not None and not (self._is_alive() and self._answers())

    def explain_loss(self, failure: Failure) -> Failure:
        exit_code = None if self._jvm is None else self._jvm.exit_code(EXIT_SECONDS)
        if exit_code is None and self._is_alive():
            return Failure("SPARK_SESSION_LOST", "The JVM of Spark no longer answers. See the worker's log.")
        if exit_code is None:
            # The task itself stopped Spark. An exception of the author's is kept.
            message = "The task has stopped Spark. Remove the call of spark.stop()."
            return failure if failure.code is None else Failure("SPARK_SESSION_LOST", message)
        if exit_code == OUT_OF_MEMORY_EXIT_CODE:
            return Failure("SPARK_OUT_OF_MEMORY", f"Spark ran out of memory and its JVM exited. {MORE_MEMORY}")
        return Failure(
            "SPARK_SESSION_LOST",
            f"The JVM of Spark exited with code {exit_code} while the task ran. See the worker's log.",
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _connect(self, jvm: Jvm) -> Any:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        borrowed.use_gateway(jvm.gateway(self._settings.start_seconds))
        root = SparkSession.builder.config(conf=SparkConf()).getOrCreate()
        # At the first registration, Spark looks for Python data sources in another process, while the first job runs.
        # The root session does not register the source, as the task sessions could not register it again.
        maker = ThreadPoolExecutor(1, thread_name_prefix="horsies-source")
        source = maker.submit(_make_source, root.newSession())
        maker.shutdown(wait=False)
        # The first job loads classes and, on a cluster, starts executors.
        root.range(2).selectExpr("sum(id)").collect()
        # Looked up once, as each look-up is a call to the JVM.
        jvm_view = borrowed.jvm_of(root.sparkContext)
        self._sessions = jvm_view.SparkSession
        self._context = borrowed.scala_context(root.sparkContext)
        self._no_properties = jvm_view.java.util.Properties()
        self._status = SparkStatus(root.sparkContext)
        self._status.progress()
        self._source = source.result()
        self._surroundings = Surroundings(root.sparkContext)
        return root

    def _healthy_root(self) -> Any:
        for _ in range(2):
            try:
                root = self._await_root()
                if self._is_responsive():
                    return root
            except SparkLost:
                # A failed start is reported after a second try.
                if self._jvm is not None and self._jvm.is_running:
                    raise
            self.restart()
        return self._await_root()

    def _await_root(self) -> Any:
        ready = self._ready or self.start()
        try:
            self._root = ready.result(self._settings.start_seconds)
        except NotDone:
            raise SparkLost(
                f"Spark did not start within {self._settings.start_seconds:.0f} s. See the worker's log."
            ) from None
        except JvmError as error:
            raise SparkLost(str(error)) from None
        except Exception as error:
            raise SparkLost(f"Spark did not start: {first_line(error)}") from error
        return self._root

    def _is_responsive(self) -> bool:
        if not self._is_alive():
            return False
        try:
            if self._cleaned is not None:
                self._cleaned.result(PING_SECONDS)
            return not self._thread.submit(self._context.isStopped).result(PING_SECONDS)
        except Exception as error:
            log.warning("Spark does not answer: %s", first_line(error))
            return False

    def _answers(self) -> bool:
        """Whether the JVM answers or is only busy. A killed one closes its connections before it counts as ended."""
        try:
            self._thread.submit(self._context.isStopped).result(PING_SECONDS)
        except NotDone:
            return True
        except Exception as error:
            log.warning("The JVM of Spark does not answer: %s", first_line(error))
            return False
        return True

    def _make_current(self, session: Any) -> None:
        """Make ``SparkSession.active()`` and ``getOrCreate()`` return this session."""
        borrowed.make_classic_current(session)
        self._sessions.setActiveSession(borrowed.java_session(session))
        self._sessions.setDefaultSession(borrowed.java_session(session))

    def _restore_python(self) -> None:
        """Done at once and not with the JVM: replacing the JVM does not reset this process."""
        if self._surroundings is not None:
            self._surroundings.restore_python()

    def _is_alive(self) -> bool:
        """Whether the JVM runs and its SparkContext is not stopped."""
        if self._jvm is None or self._root is None or not self._jvm.is_running:
            return False
        return borrowed.java_context(self._root.sparkContext) is not None


def tag_of(task_id: str) -> str:
    return f"horsies-{task_id}"


def _make_source(session: Any) -> Any:
    """The data source as a Java object, to be registered in each session; None if this pyspark is too old."""
    try:
        from airflow_horsies.source.data_source import HorsiesDataSource

        source = borrowed.make_java_source(session.sparkContext, HorsiesDataSource)
        borrowed.register_java_source(session, SOURCE_NAME, source)
    except Exception as error:
        log.warning("The data source %s is not available: %s", SOURCE_NAME, first_line(error))
        return None
    return source


def _stop_streams(root: Any) -> None:
    """Stop the streams of all sessions, as a task can open more of them; read in Spark 4.0 to 4.3."""
    streams = borrowed.java_session(root).sharedState().activeStreamingQueries()
    # Not by key: a stream that ends meanwhile would raise a KeyError.
    for stream in list(streams.elements()):
        stream.stop()


def _clean_up(root: Any, surroundings: Surroundings | None) -> None:
    """Remove what a session can leave behind for others: streams, caches, global views, settings of the JVM."""
    _stop_streams(root)
    root.catalog.clearCache()
    persistent = borrowed.java_context(root.sparkContext).getPersistentRDDs()
    for number in list(persistent):
        persistent[number].unpersist()
    # Read directly, as the catalog takes fifty times as long.
    views = borrowed.java_session(root).sharedState().globalTempViewManager().listViewNames("*").mkString("\n")
    for view in views.splitlines():
        root.catalog.dropGlobalTempView(view)
    if surroundings is not None:
        surroundings.restore()
