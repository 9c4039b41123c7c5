"""What a child keeps of the sessions that it has on a Spark Connect server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_horsies.worker.engines import connect
from airflow_horsies.worker.engines.connect import ConnectSpark
from airflow_horsies.worker.settings import SparkSettings


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> ConnectSpark:
    made = ConnectSpark(SparkSettings(master="sc://spark.test:15002"))
    monkeypatch.setattr(made, "_connect", MagicMock)
    monkeypatch.setattr(connect, "_register_source", lambda _: None)
    for name in ("make_connect_current", "exit_handler"):
        monkeypatch.setattr(connect.borrowed, name, lambda session: None)
    return made


def run_stage(spark: ConnectSpark, session: Any, number: int) -> None:
    """As the server reports it to the client."""
    (handler,) = session.registerProgressHandler.call_args.args
    handler([SimpleNamespace(stage_id=number, num_tasks=2, num_completed_tasks=2, num_bytes_read=10)], 0, "", True)


def test_sessions_of_items_add_up_to_the_metrics_of_their_attempt(spark: ConnectSpark) -> None:
    for number in range(3):
        run_stage(spark, spark.open_session("a chunk"), number)
        if number < 2:
            spark.close_session()
    assert spark.metrics("a chunk") == {"stages": 3, "tasks": 6, "input_bytes": 30}


@pytest.mark.parametrize("following", ["the task", "another task"])
def test_an_attempt_has_nothing_of_the_one_before(spark: ConnectSpark, following: str) -> None:
    run_stage(spark, spark.open_session("the task"), 1)
    assert spark.metrics("the task")["stages"] == 1
    spark.close_session()
    session = spark.open_session(following)
    assert spark.metrics(following) == {}
    run_stage(spark, session, 2)
    assert spark.metrics(following)["stages"] == 1


def test_an_attempt_whose_metrics_nobody_read_leaves_nothing(spark: ConnectSpark) -> None:
    run_stage(spark, spark.open_session("the task"), 1)
    spark.restart()
    spark.open_session("another task")
    assert spark.metrics("another task") == {}
