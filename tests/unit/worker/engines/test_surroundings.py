from __future__ import annotations

import sys
from unittest.mock import MagicMock

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker.engines.classic import ClassicSpark
from airflow_horsies.worker.engines.surroundings import Surroundings
from airflow_horsies.worker.settings import SparkSettings


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    monkeypatch.setattr(sys, "path", [*sys.path, "/tasks"])
    context = MagicMock()
    context._python_includes = ["kept.zip"]
    return context


def add_file(context: MagicMock) -> None:
    """As ``addPyFile`` does."""
    context._python_includes.append("left_behind.zip")
    sys.path.insert(1, "/tmp/spark/userFiles/left_behind.zip")


def test_files_added_for_python_are_forgotten_and_other_places_stay(context: MagicMock) -> None:
    before = list(sys.path)
    surroundings = Surroundings(context)
    add_file(context)
    sys.path.append("/added/by/the/module")
    surroundings.restore_python()
    assert context._python_includes == ["kept.zip"]
    assert sys.path == [*before, "/added/by/the/module"]


def test_what_cannot_be_put_back_costs_the_jvm(context: MagicMock) -> None:
    spark = ClassicSpark(SparkSettings(), lambda level, line: None)
    spark._jvm, spark._root, spark._session, spark._context = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    spark._context.isStopped.return_value = False
    spark._no_properties = MagicMock()
    spark._surroundings = Surroundings(context)
    assert spark._is_responsive()
    context._jvm.java.util.TimeZone.setDefault.side_effect = RuntimeError("no time zone")
    spark.close_session()
    assert not spark._is_responsive()


def test_they_are_forgotten_also_where_the_jvm_is_replaced(context: MagicMock) -> None:
    spark = ClassicSpark(SparkSettings(), lambda level, line: None)
    before = list(sys.path)
    spark._surroundings = Surroundings(context)
    add_file(context)
    spark.stop(gracefully=False)
    assert sys.path == before
