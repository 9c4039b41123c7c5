"""``@spark_task`` and ``@python_task``: plain typed functions that horsies workers run."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from horsies import Horsies, TaskError, TaskResult
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from airflow_horsies.borrowed.horsies import JsonValue
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.worker.child import run_task
from airflow_horsies.worker.errors import TaskFault
from airflow_horsies.worker.masking import SECRET_NAME
from airflow_horsies.worker.results import to_json
from airflow_horsies.worker.settings import DEFAULT_RESULT_BYTES, WorkerSettings

F = TypeVar("F", bound=Callable[..., Any])

SPARK_PARAMETER = "spark"
# Kept on the app itself, as it is all that decorators and workers share.
USES_SPARK = "airflow_horsies_uses_spark"
RESULT_BYTES = "airflow_horsies_result_bytes"
MAX_SHOWN_CHARS = 80


class TaskDefinitionError(HorsiesError):
    """A function that cannot be a task, with what to change."""


def spark_task(
    app: Horsies,
    name: str,
    *,
    max_rows: int | None = None,
    stop_at_good_until: bool = False,
    **options: Any,
) -> Callable[[F], F]:
    """
    Register a function as a task that is given a Spark session.

    The function stays as it is, so a test calls it with a session of its own. A worker validates the arguments against
    the annotations and hands over a session that no other task sees.

    .. code-block:: python

        app = horsies_app()

        @spark_task(app, "flights.count")
        def count_flights(spark: SparkSession, *, path: str, origin: str = "JFK") -> dict[str, int]:
            flights = spark.read.parquet(path).where(f"origin = '{origin}'")
            return {"flights": flights.count()}

    :param app: the app, as ``horsies_app`` makes it.
    :param name: what operators call the task.
    :param max_rows: let the function return a DataFrame, of up to this many rows; they are returned as dicts.
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
    As :func:`spark_task`, for work without Spark.

    .. code-block:: python

        @python_task(app, "reports.send")
        def send_report(*, to: str) -> None:
            ...

    :param app: the app, as ``horsies_app`` makes it.
    :param name: what operators call the task.
    :param stop_at_good_until: stop the task when its ``good_until`` passes while it runs.
    :param options: options of horsies' own ``app.task``.
    """
    return _registering(app, name, None, stop_at_good_until, options, with_spark=False)


def uses_spark(app: Horsies) -> bool:
    """Whether a task of the app wants a Spark session."""
    return bool(getattr(app, USES_SPARK, False))


def let_tasks_know(app: Horsies, settings: WorkerSettings) -> None:
    """What of the settings concerns the tasks of the app."""
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

        def run(**given: Any) -> Any:
            def body(session: Any) -> Any:
                values = arguments.validate(given)
                value = function(session, **values) if with_spark else function(**values)
                return to_json(value, max_rows=max_rows, max_bytes=max_bytes)

            return run_task(body, with_spark=with_spark, stops_at_good_until=stop_at_good_until)

        run.__name__ = run.__qualname__ = function.__name__
        run.__module__ = function.__module__
        run.__doc__ = function.__doc__
        # What horsies sees: the same names, any JSON, so that a wrong value is told by us and not half-way there.
        run.__signature__ = arguments.signature  # type: ignore[attr-defined]
        run.__annotations__ = arguments.annotations
        app.task(name, **_with_queue(app, options))(run)
        if with_spark:
            setattr(app, USES_SPARK, True)
            _ship_with_queries(function.__module__)
        return function

    return register


class Arguments:
    """The keyword arguments a task declares."""

    def __init__(self, name: str, function: Callable[..., Any], *, with_spark: bool) -> None:
        self._name = name
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise TaskDefinitionError(
                f"task {name!r}: {error} in the annotations of {function.__qualname__}; import it outside TYPE_CHECKING"
            ) from None
        parameters = list(inspect.signature(function).parameters.values())
        if with_spark:
            if not parameters or parameters[0].name != SPARK_PARAMETER or not _is_positional(parameters[0]):
                raise TaskDefinitionError(
                    f"task {name!r}: the first parameter of {function.__qualname__} must be "
                    f"{SPARK_PARAMETER!r}, before any *; it is given the Spark session. Without Spark, use @python_task"
                )
            parameters = parameters[1:]
        if inspect.iscoroutinefunction(function):
            raise TaskDefinitionError(f"task {name!r}: {function.__qualname__} is async; a task is a plain function")
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
        self.signature = inspect.Signature(
            [
                inspect.Parameter(
                    parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=self.annotations[parameter.name]
                )
                for parameter in parameters
            ],
            return_annotation=self.annotations["return"],
        )

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values as they are declared, or a BAD_INPUT that names all that is wrong."""
        wrong = [f"{name} is missing" for name in self._adapters if name in self._required and name not in given]
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self._adapters:
                values[name] = value
                continue
            try:
                values[name] = self._adapters[name].validate_python(value)
            except ValidationError as error:
                wrong += [_told(name, each, is_secret=name in self._secret) for each in error.errors()]
        if wrong:
            raise TaskFault("BAD_INPUT", f"task {self._name!r} cannot take its arguments: {'; '.join(wrong)}")
        return values

    def _add(self, function: Callable[..., Any], parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
        where = f"task {self._name!r}: the parameter {parameter.name!r} of {function.__qualname__}"
        if parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            raise TaskDefinitionError(f"{where} cannot be given by name; horsies sends arguments by name only")
        if parameter.name not in hints:
            raise TaskDefinitionError(f"{where} needs an annotation, as in {parameter.name}: str")
        try:
            self._adapters[parameter.name] = TypeAdapter(hints[parameter.name])
            self._adapters[parameter.name].json_schema()
        except PydanticUserError as error:
            raise TaskDefinitionError(f"{where} has an annotation that JSON cannot fill: {error.message}") from None
        if parameter.default is inspect.Parameter.empty:
            self._required.add(parameter.name)


def _told(name: str, error: Any, *, is_secret: bool) -> str:
    place = name + "".join(f"[{step!r}]" for step in error["loc"])
    # What stands inside of a value may be anything, also a secret beside the one that is wrong.
    if error["loc"] or is_secret or SECRET_NAME.search(name):
        return f"{place}: {error['msg']}"
    shown = repr(error["input"])
    if len(shown) > MAX_SHOWN_CHARS:
        shown = f"{shown[:MAX_SHOWN_CHARS]}…"
    return f"{place}: {error['msg']} (given {shown})"


def _with_queue(app: Horsies, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where an app has queues, horsies wants each task to have one; whoever sends a task may name another."""
    queues = app.config.custom_queues
    return {"queue_name": queues[0].name, **options} if queues else dict(options)


def _ship_with_queries(module: str) -> None:
    """Let functions of the module travel to executors, which need not have it."""
    from pyspark import cloudpickle

    if module in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _is_engine_slot(hint: Any) -> bool:
    """Parameters that horsies' workflows fill by themselves."""
    parts = (hint, *typing.get_args(hint))
    return any(
        typing.get_origin(part) is TaskResult or getattr(part, "__name__", "") in ("WorkflowContext", "WorkflowMeta")
        for part in parts
    )
