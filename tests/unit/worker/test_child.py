from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("horsies")

from horsies import TaskResult
from horsies.core.models.tasks import OperationalErrorCode

from airflow_horsies.worker import reporter as reporter_module
from airflow_horsies.worker.attempt import Assignment
from airflow_horsies.worker.child import Child
from airflow_horsies.worker.settings import WorkerSettings
from tests.unit.worker.tables import Tables, eventually

URL = "postgresql+psycopg://worker:s3cret-word@db/horsies"


@pytest.fixture
def make_child(monkeypatch: pytest.MonkeyPatch, tables: Tables) -> Callable[..., Child]:
    """A child that reports, and leaves the streams and signals of this process alone."""
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 0.02)

    def make(**settings: Any) -> Child:
        child = Child(WorkerSettings(database_url=URL, **settings), uses_spark=False)
        child._reporter.start()
        return child

    return make


def run(child: Child, body: Callable[[], Any]) -> Any:
    return child.run(
        Assignment("t1", "w1", None, None), lambda session: body(), with_spark=False, stops_at_good_until=False
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Wordless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("error", [Unspeakable, Wordless])
def test_an_exception_whose_text_cannot_be_had_is_returned_as_an_error_instead_of_raised(
    error: type[Exception], make_child: Callable[..., Child], tables: Tables
) -> None:
    def fail() -> None:
        raise error

    child = make_child()
    outcome = run(child, fail)
    assert isinstance(outcome, TaskResult)
    assert outcome.err.error_code == OperationalErrorCode.UNHANDLED_EXCEPTION
    assert outcome.err.message.startswith(error.__name__)
    assert child.current is None
    eventually(lambda: ("t1", 1) in tables.ended)
    ended = tables.ended["t1", 1]
    assert (ended["outcome"], ended["error_code"]) == ("FAILED", "UNHANDLED_EXCEPTION")
    assert ended["error_message"] == outcome.err.message


def test_why_it_failed_is_kept_of_an_attempt_that_wrote_all_its_lines(
    make_child: Callable[..., Child], tables: Tables
) -> None:
    child = make_child(log_lines=2)

    def fail() -> None:
        assert child.current is not None
        child.current.log.add("INFO", ["a", "b", "c"])
        raise ValueError("no such day")

    with pytest.raises(ValueError, match="no such day"):
        run(child, fail)
    eventually(lambda: ("t1", 1) in tables.ended)
    texts = [text for _, text in tables.texts("t1")]
    assert texts[:2] == ["a", "b"]
    assert "UNHANDLED_EXCEPTION: ValueError: no such day" in texts
    assert not any("Traceback" in text for text in texts)
    assert tables.ended["t1", 1]["error_message"] == "ValueError: no such day"


class SlowSpark:
    """Interrupts slowly, and remembers which task was in the session when it did."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.hit: list[tuple[str, str | None]] = []
        self.restarts = 0
        self.is_lost = False
        self.interrupted = threading.Event()

    def open_session(self, task_id: str) -> str:
        self.session = task_id
        return task_id

    def close_session(self) -> None:
        self.session = None

    def interrupt(self, task_id: str) -> None:
        self.interrupted.set()
        time.sleep(0.3)
        self.hit.append((task_id, self.session))

    def metrics(self, task_id: str) -> dict[str, float]:
        return {}

    def poll_progress(self) -> None:
        return None

    def restart(self) -> None:
        self.restarts += 1


def test_an_interrupt_of_one_task_never_hits_the_next_one(make_child: Callable[..., Child], tables: Tables) -> None:
    spark = SlowSpark()
    child = make_child()
    child._spark = spark  # type: ignore[assignment]

    def run_and_be_cancelled(session: Any) -> None:
        tables.cancelled.add("first")
        assert spark.interrupted.wait(10)
        raise RuntimeError("the job was cancelled")

    options: dict[str, Any] = {"with_spark": True, "stops_at_good_until": False}
    child.run(Assignment("first", "w1", None, None), run_and_be_cancelled, **options)
    second = child.run(Assignment("second", "w1", None, None), lambda session: time.sleep(0.6), **options)
    assert second.is_ok()
    assert spark.hit and {session for _, session in spark.hit} <= {"first"}
    assert (spark.restarts, tables.ended["first", 1]["outcome"]) == (0, "CANCELLED")


def test_what_a_task_returns_whose_jobs_were_cut_short_is_not_its_result(
    make_child: Callable[..., Child], tables: Tables
) -> None:
    """As one that waits for a stream, which ends quietly when it is stopped."""
    spark = SlowSpark()
    child = make_child()
    child._spark = spark  # type: ignore[assignment]

    def return_when_the_stream_stops(session: Any) -> str:
        tables.cancelled.add("t1")
        assert spark.interrupted.wait(10)
        return "half of it"

    outcome = child.run(
        Assignment("t1", "w1", None, None), return_when_the_stream_stops, with_spark=True, stops_at_good_until=False
    )
    assert outcome.is_err()
    assert tables.ended["t1", 1]["outcome"] == "CANCELLED"


def test_the_streams_of_all_sessions_are_stopped() -> None:
    from airflow_horsies.worker.engines.classic import ClassicSpark
    from airflow_horsies.worker.settings import SparkSettings

    spark = ClassicSpark(SparkSettings(), lambda level, line: None)
    root, streams = MagicMock(), [MagicMock(), MagicMock()]
    root._jsparkSession.sharedState().activeStreamingQueries().elements.return_value = streams
    spark._root, spark._session, spark._jvm = root, MagicMock(), MagicMock()
    spark.interrupt("t1")
    root.sparkContext.cancelJobsWithTag.assert_called_once_with("horsies-t1")
    for stream in streams:
        stream.stop.assert_called_once_with()
