"""Fails when a private part of pyspark moves; what needs a JVM is tried by the tests of the workers."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.sql import SparkSession, datasource

from airflow_horsies.borrowed import pyspark as borrowed


def test_a_context_takes_a_gateway_and_keeps_it() -> None:
    assert "gateway" in inspect.signature(SparkContext._ensure_initialized).parameters
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        assert hasattr(SparkContext, name)
    source = inspect.getsource(SparkContext)
    for name in ("_jsc", "_python_includes"):
        assert f"self.{name}" in source


def test_the_current_session_is_where_pyspark_looks_for_it() -> None:
    session = object()
    borrowed.make_classic_current(session)
    try:
        assert SparkSession._instantiatedSession is session
        assert SparkSession._activeSession is session
        assert "_instantiatedSession" in inspect.getsource(SparkSession.Builder)
    finally:
        borrowed.forget_jvm()
    assert SparkSession._instantiatedSession is None


def test_a_source_of_python_is_registered_as_pyspark_does_it() -> None:
    from pyspark.sql.udf import _wrap_function

    assert list(inspect.signature(_wrap_function).parameters)[:2] == ["sc", "func"]
    assert borrowed.SOURCE_CLASS.rpartition(".")[2] in inspect.getsource(datasource)
    assert "registerPython" in inspect.getsource(datasource)


def test_a_client_of_connect_has_retries_and_an_end() -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.client.core import SparkConnectClient
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as Remote

    assert DefaultPolicy(max_retries=2, max_backoff=1_000).max_retries == 2
    assert hasattr(SparkConnectClient, "set_retry_policies") and hasattr(SparkConnectClient, "_on_exit")
    assert hasattr(Remote, "_active_session") and hasattr(Remote, "_default_session")
