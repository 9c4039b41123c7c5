from __future__ import annotations

import threading
from unittest.mock import MagicMock

import pytest

pytest.importorskip("horsies")

from py4j.protocol import Py4JError

from airflow_horsies.worker.engines import classic
from airflow_horsies.worker.engines.classic import ClassicSpark
from airflow_horsies.worker.errors import Failure
from airflow_horsies.worker.settings import SparkSettings

CUT_OFF = Failure("SPARK_JOB_FAILED", "ConnectionResetError: [Errno 104] Connection reset by peer")


@pytest.fixture
def spark() -> ClassicSpark:
    """With a JVM that runs and a session of a task."""
    spark = ClassicSpark(SparkSettings(), lambda level, line: None)
    spark._jvm, spark._root, spark._session, spark._context = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    spark._context.isStopped.return_value = False
    spark._jvm.exit_code.return_value = None
    return spark


def test_jvm_that_answers_is_not_lost(spark: ClassicSpark) -> None:
    assert not spark.is_lost


def test_killed_jvm_is_lost_as_soon_as_its_connections_are_closed(spark: ClassicSpark) -> None:
    """They are closed before the process counts as ended."""
    spark._context.isStopped.side_effect = Py4JError("An error occurred while calling o1.isStopped")
    spark._jvm.exit_code.return_value = -9
    assert spark.is_lost
    failure = spark.explain_loss(CUT_OFF)
    assert failure.code == "SPARK_SESSION_LOST"
    assert "code -9" in failure.message


def test_jvm_that_runs_and_does_not_answer_any_more_is_not_called_stopped_by_the_task(spark: ClassicSpark) -> None:
    spark._context.isStopped.side_effect = Py4JError("An error occurred while calling o1.isStopped")
    assert spark.is_lost
    failure = spark.explain_loss(Failure(None, "ValueError: no such day"))
    assert failure.code == "SPARK_SESSION_LOST"
    assert "no longer answers" in failure.message


def test_busy_jvm_is_not_lost(spark: ClassicSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is noticed by the question for its progress."""
    answered = threading.Event()
    monkeypatch.setattr(classic, "PING_SECONDS", 0.01)
    spark._context.isStopped.side_effect = answered.wait
    try:
        assert not spark.is_lost
    finally:
        answered.set()


def test_spark_that_the_task_stopped_is_lost_and_says_so(spark: ClassicSpark) -> None:
    spark._root.sparkContext._jsc = None
    assert spark.is_lost
    assert "spark.stop()" in spark.explain_loss(CUT_OFF).message
    author = Failure(None, "ValueError: no such day")
    assert spark.explain_loss(author) is author
