"""``@spark_task`` and ``@python_task``: register typed functions as tasks of horsies workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from horsies import Horsies, TaskError, TaskResult

from airflow_horsies.borrowed.horsies import (
    JsonValue,
    accept_results,
    make_usable_as_node,
    resolve_exception_error_code,
)
from airflow_horsies.core.chunk import CHUNK_SUFFIX, ISOLATE, ITEMS, RETRY_POLICY, TIMEOUT_MS
from airflow_horsies.worker.arguments import Arguments, TaskDefinitionError, declare, signature_of
from airflow_horsies.worker.child import find_addresses, run_chunk, run_task
from airflow_horsies.worker.chunk import ItemTask
from airflow_horsies.worker.errors import Failure, short
from airflow_horsies.worker.results import to_json, to_json_text
from airflow_horsies.worker.settings import DEFAULT_RESULT_BYTES, WorkerSettings
from airflow_horsies.worker.waiting import with_parking

__all__ = [
    "Arguments",
    "TaskDefinitionError",
    "apply_settings",
    "python_task",
    "spark_task",
    "uses_spark",
]

F = TypeVar("F", bound=Callable[..., Any])

# Attributes of the app, which is the only object that decorators and workers share.
USES_SPARK = "airflow_horsies_uses_spark"
RESULT_BYTES = "airflow_horsies_result_bytes"
# The arguments of each task, by its name.
ARGUMENTS = "airflow_horsies_arguments"


def spark_task(
    app: Horsies,
    name: str,
    *,
    max_rows: int | None = None,
    stop_at_good_until: bool = False,
    parks: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """
    Register a function as a task that receives a Spark session.

    The function itself is unchanged, so a test can call it with any session. A worker validates the arguments against
    the annotations and passes a session that no other task uses.

    .. code-block:: python

        app = horsies_app()

        @spark_task(app, "flights.count")
        def count_flights(spark: SparkSession, *, path: str, origin: str = "JFK") -> dict[str, int]:
            flights = spark.read.parquet(path).where(f"origin = '{origin}'")
            return {"flights": flights.count()}

    :param app: the app made by ``horsies_app``.
    :param name: the name that operators use for the task.
    :param max_rows: allow the function to return a DataFrame of up to this many rows, which become dicts.
    :param stop_at_good_until: stop the task when its ``good_until`` passes while it runs.
    :param parks: the task calls ``park_until()``, as a node of a workflow or sent by horsies itself. Whoever sends it
        from Airflow sets ``retry_policy=RetryPolicy.parking()``.
    :param options: options of horsies' own ``app.task``: ``queue_name``, ``retry_policy``, ``timeout_ms``,
        ``exception_mapper`` …
    """
    given = with_parking(options) if parks else options
    return _registering(app, name, max_rows, stop_at_good_until, given, with_spark=True)


def python_task(
    app: Horsies,
    name: str,
    *,
    stop_at_good_until: bool = False,
    parks: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """
    Register a function as a task without Spark; see :func:`spark_task`.

    .. code-block:: python

        @python_task(app, "reports.send")
        def send_report(*, to: str) -> None:
            ...

    :param app: the app made by ``horsies_app``.
    :param name: the name that operators use for the task.
    :param stop_at_good_until: stop the task when its ``good_until`` passes while it runs.
    :param parks: the task calls ``park_until()``; see :func:`spark_task`.
    :param options: options of horsies' own ``app.task``.
    """
    given = with_parking(options) if parks else options
    return _registering(app, name, None, stop_at_good_until, given, with_spark=False)


def uses_spark(app: Horsies) -> bool:
    """Whether a task of the app needs a Spark session."""
    return bool(getattr(app, USES_SPARK, False))


def arguments_of(app: Horsies) -> dict[str, Arguments]:
    """The arguments of the tasks of the app that these decorators registered, by name."""
    if not hasattr(app, ARGUMENTS):
        setattr(app, ARGUMENTS, {})
    known: dict[str, Arguments] = getattr(app, ARGUMENTS)
    return known


def apply_settings(app: Horsies, settings: WorkerSettings) -> None:
    """Store the settings that the tasks of the app need."""
    setattr(app, RESULT_BYTES, settings.result_bytes)


def _registering(
    app: Horsies,
    name: str,
    max_rows: int | None,
    stop_at_good_until: bool,
    options: Mapping[str, Any],
    *,
    with_spark: bool,
) -> Callable[[F], F]:
    def register(function: F) -> F:
        arguments = Arguments(name, function, with_spark=with_spark)
        max_bytes = getattr(app, RESULT_BYTES, DEFAULT_RESULT_BYTES)

        name_failure = partial(_name_failure, app, function.__name__, options)

        def call(session: Any, given: Mapping[str, Any]) -> Any:
            values = arguments.validate(given)
            return function(session, **values) if with_spark else function(**values)

        def run(**given: Any) -> Any:
            def body(session: Any) -> Any:
                addresses = find_addresses(given)
                if addresses is None:
                    return to_json(call(session, given), max_rows=max_rows, max_bytes=max_bytes)
                with addresses.hidden_in_errors(name_failure):
                    result = to_json(call(session, addresses.fill(given)), max_rows=max_rows, max_bytes=max_bytes)
                return addresses.hide(result)

            return run_task(body, with_spark=with_spark, stops_at_good_until=stop_at_good_until)

        def call_item(session: Any, given: Any) -> str:
            arguments.require_known(run, given)
            return to_json_text(call(session, given), max_rows=max_rows, max_bytes=max_bytes)

        _present_as(run, function, arguments.annotations, arguments.defaults)
        app.task(name, **with_queue(app, options))(run)
        accept_results(run, [argument.name for argument in arguments if not argument.is_slot])
        arguments_of(app)[name] = arguments
        make_usable_as_node(function, app.tasks[name], _face_of(function, arguments))
        items = ItemTask(call_item, name_failure, with_spark=with_spark, stops_at_good_until=stop_at_good_until)
        _register_chunk(app, name, function, items, options)
        if with_spark:
            setattr(app, USES_SPARK, True)
            _ship_with_queries(function.__module__)
        return function

    return register


def _register_chunk(
    app: Horsies, name: str, function: Callable[..., Any], task: ItemTask, options: Mapping[str, Any]
) -> None:
    """Register the task that runs many items of a task."""

    def run_items(**given: Any) -> Any:
        return run_chunk(task, given)

    hints: dict[str, Any] = dict.fromkeys((ITEMS, TIMEOUT_MS, RETRY_POLICY, ISOLATE), JsonValue)
    _present_as(run_items, function, {**hints, "return": TaskResult[JsonValue, TaskError]})
    queue = {key: options[key] for key in ("queue_name",) if key in options}
    app.task(f"{name}{CHUNK_SUFFIX}", **with_queue(app, queue))(run_items)


def _present_as(
    run: Callable[..., Any],
    function: Callable[..., Any],
    annotations: dict[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Let horsies see the name of the function and the given parameters."""
    run.__name__ = run.__qualname__ = function.__name__
    run.__module__ = function.__module__
    run.__doc__ = function.__doc__
    run.__signature__ = signature_of(annotations, defaults or {})  # type: ignore[attr-defined]
    run.__annotations__ = annotations


def _face_of(function: Callable[..., Any], arguments: Arguments) -> Callable[..., Any]:
    """What a workflow checks the arguments of a node against."""

    def face(**given: Any) -> Any: ...

    annotations = {argument.name: declare(argument, keeps_json=True) for argument in arguments}
    _present_as(face, function, {**annotations, "return": TaskResult[Any, TaskError]}, arguments.defaults)
    return face


def _name_failure(
    app: Horsies, function: str, options: Mapping[str, Any], error: BaseException, failure: Failure
) -> Failure:
    """The code and the message that horsies gives to an exception of a task."""
    code = resolve_exception_error_code(
        error,
        options.get("exception_mapper"),
        app.config.exception_mapper,
        options.get("default_unhandled_error_code"),
        app.config.default_unhandled_error_code,
    )
    return Failure(code, short(f"Unhandled exception in task {function}: {failure.message}"))


def with_queue(app: Horsies, options: Mapping[str, Any]) -> dict[str, Any]:
    """If an app has queues, horsies requires a queue for each task. The sender of a task may name another."""
    queues = app.config.custom_queues
    return {"queue_name": queues[0].name, **options} if queues else dict(options)


def _ship_with_queries(module: str) -> None:
    """Pickle functions of the module by value, as executors may not have the module."""
    from pyspark import cloudpickle

    if module in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
