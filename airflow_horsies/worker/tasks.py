"""``@spark_task`` and ``@python_task``: register typed functions as tasks of horsies workers."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from horsies import Horsies, TaskError, TaskResult
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from airflow_horsies.borrowed.horsies import (
    JsonValue,
    OperationalErrorCode,
    StrictJsonError,
    decode_kwargs,
    resolve_exception_error_code,
)
from airflow_horsies.core.chunk import CHUNK_SUFFIX, ISOLATE, ITEMS, RETRY_POLICY, TIMEOUT_MS
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.worker.child import find_addresses, run_chunk, run_task
from airflow_horsies.worker.chunk import ItemTask
from airflow_horsies.worker.errors import Failure, TaskFault, short
from airflow_horsies.worker.masking import SECRET_NAME
from airflow_horsies.worker.results import to_json, to_json_text
from airflow_horsies.worker.settings import DEFAULT_RESULT_BYTES, WorkerSettings

F = TypeVar("F", bound=Callable[..., Any])

SPARK_PARAMETER = "spark"
# Attributes of the app, which is the only object that decorators and workers share.
USES_SPARK = "airflow_horsies_uses_spark"
RESULT_BYTES = "airflow_horsies_result_bytes"
MAX_SHOWN_CHARS = 80


class TaskDefinitionError(HorsiesError):
    """A function that cannot be a task; the message says what to change."""


def spark_task(
    app: Horsies,
    name: str,
    *,
    max_rows: int | None = None,
    stop_at_good_until: bool = False,
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
    :param options: options of horsies' own ``app.task``: ``queue_name``, ``retry_policy``, ``timeout_ms``,
        ``exception_mapper`` …
    """
    return _registering(app, name, max_rows, stop_at_good_until, options, with_spark=True)


def python_task(
    app: Horsies,
    name: str,
    *,
    stop_at_good_until: bool = False,
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
    :param options: options of horsies' own ``app.task``.
    """
    return _registering(app, name, None, stop_at_good_until, options, with_spark=False)


def uses_spark(app: Horsies) -> bool:
    """Whether a task of the app needs a Spark session."""
    return bool(getattr(app, USES_SPARK, False))


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

        # horsies sees the same names with any JSON, so that wrong values are reported by us, all at once.
        _present_as(run, function, arguments.annotations)
        app.task(name, **_with_queue(app, options))(run)
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
    app.task(f"{name}{CHUNK_SUFFIX}", **_with_queue(app, queue))(run_items)


def _present_as(run: Callable[..., Any], function: Callable[..., Any], annotations: dict[str, Any]) -> None:
    """Let horsies see the name of the function and the given parameters."""
    run.__name__ = run.__qualname__ = function.__name__
    run.__module__ = function.__module__
    run.__doc__ = function.__doc__
    run.__signature__ = _signature_of(annotations)  # type: ignore[attr-defined]
    run.__annotations__ = annotations


def _signature_of(annotations: Mapping[str, Any]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
            for name, hint in annotations.items()
            if name != "return"
        ],
        return_annotation=annotations["return"],
    )


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


class Arguments:
    """The keyword arguments that a task declares."""

    def __init__(self, name: str, function: Callable[..., Any], *, with_spark: bool) -> None:
        self._name = name
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise TaskDefinitionError(
                f"Task {name!r}: {error} in the annotations of {function.__qualname__}. "
                "Import it outside TYPE_CHECKING."
            ) from None
        parameters = list(inspect.signature(function).parameters.values())
        if with_spark:
            if not parameters or parameters[0].name != SPARK_PARAMETER or not _is_positional(parameters[0]):
                raise TaskDefinitionError(
                    f"Task {name!r}: the first parameter of {function.__qualname__} must be {SPARK_PARAMETER!r}, "
                    "before any *. It receives the Spark session. For a task without Spark, use @python_task."
                )
            parameters = parameters[1:]
        if inspect.iscoroutinefunction(function):
            raise TaskDefinitionError(
                f"Task {name!r}: {function.__qualname__} is async. Write a plain function instead."
            )
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._required: set[str] = set()
        self._secret = {known for known, hint in hints.items() if "Secret" in str(hint)}
        engine_slots = {known: hint for known, hint in hints.items() if _is_engine_slot(hint)}
        for parameter in parameters:
            if parameter.name not in engine_slots:
                self._add(function, parameter, hints)
        self.annotations: dict[str, Any] = {
            **{parameter.name: engine_slots.get(parameter.name, JsonValue) for parameter in parameters},
            "return": TaskResult[JsonValue, TaskError],
        }

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values converted to their declared types; BAD_INPUT names every problem."""
        problems = [f"{name} is missing" for name in self._adapters if name in self._required and name not in given]
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self._adapters:
                values[name] = value
                continue
            try:
                values[name] = self._adapters[name].validate_python(value)
            except ValidationError as error:
                problems += [_describe(name, detail, is_secret=name in self._secret) for detail in error.errors()]
        if problems:
            raise TaskFault(
                "BAD_INPUT",
                f"Task {self._name!r} got invalid arguments: {'; '.join(problems)}. Correct them in the DAG.",
            )
        return values

    def require_known(self, run: Callable[..., Any], given: Any) -> None:
        """Refuse what horsies refuses before it calls a task, with the same code."""
        if not isinstance(given, dict):
            raise TaskFault("BAD_INPUT", f"An item of task {self._name!r} must be an object, not {short(repr(given))}.")
        if not given.keys() <= self._adapters.keys():
            try:
                decode_kwargs(run, given)
            except (StrictJsonError, ValidationError) as error:
                code = OperationalErrorCode.WORKER_SERIALIZATION_ERROR.value
                raise TaskFault(code, f"Failed to decode kwargs for {self._name}: {error}") from None

    def _add(self, function: Callable[..., Any], parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
        where = f"Task {self._name!r}: the parameter {parameter.name!r} of {function.__qualname__}"
        if parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            raise TaskDefinitionError(f"{where} must be a keyword parameter. horsies sends arguments by name only.")
        if parameter.name not in hints:
            raise TaskDefinitionError(f"{where} needs an annotation, for example {parameter.name}: str.")
        try:
            self._adapters[parameter.name] = TypeAdapter(hints[parameter.name])
            self._adapters[parameter.name].json_schema()
        except PydanticUserError as error:
            raise TaskDefinitionError(
                f"{where} has an annotation that JSON cannot represent. Use JSON types or pydantic models. "
                f"{error.message}"
            ) from None
        if parameter.default is inspect.Parameter.empty:
            self._required.add(parameter.name)


def _describe(name: str, error: Any, *, is_secret: bool) -> str:
    place = name + "".join(f"[{step!r}]" for step in error["loc"])
    # A nested value may be a secret.
    if error["loc"] or is_secret or SECRET_NAME.search(name):
        return f"{place}: {error['msg']}"
    shown = repr(error["input"])
    if len(shown) > MAX_SHOWN_CHARS:
        shown = f"{shown[:MAX_SHOWN_CHARS]}…"
    return f"{place}: {error['msg']} (got {shown})"


def _with_queue(app: Horsies, options: Mapping[str, Any]) -> dict[str, Any]:
    """If an app has queues, horsies requires a queue for each task. The sender of a task may name another."""
    queues = app.config.custom_queues
    return {"queue_name": queues[0].name, **options} if queues else dict(options)


def _ship_with_queries(module: str) -> None:
    """Pickle functions of the module by value, as executors may not have the module."""
    from pyspark import cloudpickle

    if module in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _is_engine_slot(hint: Any) -> bool:
    """Whether horsies' workflows fill the parameter."""
    parts = (hint, *typing.get_args(hint))
    return any(
        typing.get_origin(part) is TaskResult or getattr(part, "__name__", "") in ("WorkflowContext", "WorkflowMeta")
        for part in parts
    )
