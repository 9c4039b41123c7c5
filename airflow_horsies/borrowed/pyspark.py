"""Private parts of pyspark that workers use; read in 4.0 to 4.3. Imports are local, as not every worker has Spark."""

from __future__ import annotations

import threading
from typing import Any

SOURCE_CLASS = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"


# -- the JVM of a classic session --------------------------------------------------------------------------------------


def open_gateway() -> Any:
    """The py4j gateway to the JVM whose port and secret are in the environment."""
    from pyspark.java_gateway import launch_gateway

    return launch_gateway()  # type: ignore[no-untyped-call]


def use_gateway(gateway: Any) -> None:
    """Make the next SparkContext use this gateway instead of starting a JVM."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def jvm_of(context: Any) -> Any:
    """The view of the JVM of a SparkContext, which gives access to classes."""
    return context._jvm


def java_context(context: Any) -> Any:
    """The JavaSparkContext; None after the context was stopped."""
    return context._jsc


def scala_context(context: Any) -> Any:
    return context._jsc.sc()


def java_session(session: Any) -> Any:
    return session._jsparkSession


def python_includes(context: Any) -> list[str]:
    """The files and modules that were added for Python, as a mutable list."""
    includes: list[str] = context._python_includes
    return includes


def make_classic_current(session: Any) -> None:
    """Make ``SparkSession.active()`` and ``getOrCreate()`` return this session in Python."""
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = session
    SparkSession._activeSession = session


def forget_jvm() -> None:
    """Make pyspark forget a JVM. Its own stop() would call that JVM first."""
    from pyspark import SparkContext

    make_classic_current(None)
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is not None:
        threading.Thread(target=gateway.shutdown, daemon=True).start()


def make_java_source(context: Any, source: type) -> Any:
    """A Python data source as a Java object, to be registered in sessions."""
    from pyspark.sql.udf import _wrap_function

    return getattr(context._jvm, SOURCE_CLASS)(_wrap_function(context, source))


def register_java_source(session: Any, name: str, source: Any) -> None:
    session._jsparkSession.dataSource().registerPython(name, source)


# -- Spark Connect -----------------------------------------------------------------------------------------------------


def limit_retries(session: Any, *, max_retries: int, max_backoff_ms: int) -> None:
    """Limit how long the client of a Connect session tries to reach its server."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=max_retries, max_backoff=max_backoff_ms)])


def make_connect_current(session: Any) -> None:
    """Make ``SparkSession.active()`` and ``getOrCreate()`` return this session, also on threads of the task."""
    from pyspark.sql.connect.session import SparkSession as Remote

    Remote._active_session.session = session
    Remote._default_session = session


def exit_handler(session: Any) -> Any:
    """The exit handler of a client, which keeps a reference to the client."""
    return session.client._on_exit
