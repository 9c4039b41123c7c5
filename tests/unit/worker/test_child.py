from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
