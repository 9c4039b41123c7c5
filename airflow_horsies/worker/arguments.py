"""The keyword arguments that a task or a workflow declares."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union

from horsies import TaskError, TaskResult
from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, core_schema

from airflow_horsies.borrowed.horsies import JsonValue, OperationalErrorCode, StrictJsonError, decode_kwargs
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.worker.errors import TaskFault, code_text, short
from airflow_horsies.worker.masking import SECRET_NAME

Kind = Literal["task", "workflow"]

SPARK_PARAMETER = "spark"
APP_PARAMETER = "app"
MAX_SHOWN_CHARS = 80
# What the function receives first, before its keyword arguments.
RECEIVED = {
    SPARK_PARAMETER: "It receives the Spark session. For a task without Spark, use @python_task.",
    APP_PARAMETER: "It receives the app, whose workflow() makes the definition.",
}


class TaskDefinitionError(HorsiesError):
    """A function that cannot be a task or a workflow; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Argument:
    """
    One keyword parameter.

    :param hint: the annotation.
    :param adapter: of the value; None for a parameter that the engine of workflows fills.
    :param result: of the value in a ``TaskResult[...]``, which another node fills; None for other parameters.
    """

    name: str
    hint: Any
    default: Any
    adapter: TypeAdapter[Any] | None = None
    result: TypeAdapter[Any] | None = None

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def is_slot(self) -> bool:
        """Whether only the engine of workflows fills it."""
        return self.adapter is None

    @property
    def is_secret(self) -> bool:
        return "Secret" in str(self.hint) or SECRET_NAME.search(self.name) is not None


class Arguments:
    """
    The keyword arguments that a function declares.

    :param name: of the task or the workflow.
    :param receives: the name of the positional parameter before the keyword parameters, if there is one.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        with_spark: bool = False,
        kind: Kind = "task",
        receives: str | None = None,
    ) -> None:
        self._name = name
        self._kind = kind.capitalize()
        receives = SPARK_PARAMETER if with_spark else receives
        if inspect.iscoroutinefunction(function):
            raise self._invalid(f"{function.__qualname__} is async. Write a plain function instead.")
        self.hints = self._read_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        if receives is not None:
            if not parameters or not _is_positional(parameters[0]) or parameters[0].name != receives:
                raise self._invalid(
                    f"the first parameter of {function.__qualname__} must be {receives!r}, before any *. "
                    f"{RECEIVED[receives]}"
                )
            parameters = parameters[1:]
        self._arguments = {parameter.name: self._read(function, parameter) for parameter in parameters}
        self._values = {argument.name: argument for argument in self if argument.adapter is not None}

    def __iter__(self) -> Iterator[Argument]:
        return iter(self._arguments.values())

    @property
    def annotations(self) -> dict[str, Any]:
        """As horsies sees them: any JSON, so that wrong values are reported by us, all at once."""
        seen = {argument.name: argument.hint if argument.is_slot else JsonValue for argument in self}
        return {**seen, "return": TaskResult[JsonValue, TaskError]}

    @property
    def defaults(self) -> dict[str, Any]:
        return {argument.name: argument.default for argument in self if not argument.is_required}

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values converted to their declared types; BAD_INPUT names every problem."""
        problems = [
            f"{name} is missing" for name, known in self._values.items() if known.is_required and name not in given
        ]
        values: dict[str, Any] = {}
        for name, value in given.items():
            argument = self._arguments.get(name)
            if argument is None:
                values[name] = value
                continue
            try:
                values[name] = self._convert(argument, value)
            except ValidationError as error:
                problems += describe_errors(argument, error)
        if problems:
            raise TaskFault(
                "BAD_INPUT",
                f"{self._title} got invalid arguments: {'; '.join(problems)}. Correct them in the DAG.",
            )
        return values

    def require_known(self, run: Callable[..., Any], given: Any) -> None:
        """Refuse what horsies refuses before it calls a task, with the same code."""
        if not isinstance(given, dict):
            raise TaskFault("BAD_INPUT", f"An item of task {self._name!r} must be an object, not {short(repr(given))}.")
        if not given.keys() <= self._values.keys():
            try:
                decode_kwargs(run, given)
            except (StrictJsonError, ValidationError) as error:
                code = OperationalErrorCode.WORKER_SERIALIZATION_ERROR.value
                raise TaskFault(code, f"Failed to decode kwargs for {self._name}: {error}") from None

    def _convert(self, argument: Argument, value: Any) -> Any:
        if isinstance(value, TaskResult):
            return self._convert_result(argument, value)
        return value if argument.adapter is None else argument.adapter.validate_python(value)

    def _convert_result(self, argument: Argument, value: Any) -> Any:
        """What another node of a workflow returned: as it is declared, or its value."""
        if argument.adapter is None:
            if argument.result is None or value.is_err():
                return value
            converted = argument.result.validate_python(value.ok)
            return value if converted is value.ok else TaskResult(ok=converted)
        if value.is_err():
            error = value.err
            raise TaskFault(
                "INPUT_FAILED",
                short(
                    f"The argument {argument.name} of {self._title[0].lower()}{self._title[1:]} comes from a node that "
                    f"failed with {code_text(error.error_code)}: {error.message}. To handle it, annotate "
                    f"{argument.name} as TaskResult[..., TaskError]."
                ),
            )
        return argument.adapter.validate_python(value.ok)

    def _read_hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise self._invalid(
                f"{error} in the annotations of {function.__qualname__}. Import it outside TYPE_CHECKING."
            ) from None

    def _read(self, function: Callable[..., Any], parameter: inspect.Parameter) -> Argument:
        name, default = parameter.name, parameter.default
        where = f"the parameter {name!r} of {function.__qualname__}"
        hint: Any = self.hints.get(name)
        if is_engine_slot(hint):
            return Argument(name, hint, default, result=_adapter_of_result(hint))
        if parameter.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            raise self._invalid(f"{where} must be a keyword parameter. horsies sends arguments by name only.")
        if name not in self.hints:
            raise self._invalid(f"{where} needs an annotation, for example {name}: str.")
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            adapter.json_schema()
        except PydanticUserError as error:
            raise self._invalid(
                f"{where} has an annotation that JSON cannot represent. Use JSON types or pydantic models. "
                f"{error.message}"
            ) from None
        return Argument(name, hint, default, adapter)

    @property
    def _title(self) -> str:
        return f"{self._kind} {self._name!r}"

    def _invalid(self, problem: str) -> TaskDefinitionError:
        return TaskDefinitionError(f"{self._title}: {problem}")


class Declared:
    """
    Tells pydantic how to check a parameter, so that horsies reports a wrong value by the name of the parameter.

    :param keeps_json: a JSON value stays as it is, to be converted where the task runs.
    """

    def __init__(self, argument: Argument, adapter: TypeAdapter[Any], *, keeps_json: bool) -> None:
        self._argument = argument
        self._adapter = adapter
        self._keeps_json = keeps_json

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        dump = core_schema.plain_serializer_function_ser_schema(self._dump)
        return core_schema.no_info_plain_validator_function(self._validate, serialization=dump)

    def _validate(self, value: Any) -> Any:
        try:
            valid = self._adapter.validate_python(value)
        except ValidationError as error:
            raise StrictJsonError("; ".join(describe_errors(self._argument, error))) from None
        if not self._keeps_json:
            return valid
        return value if _is_json(value) else self._dump(valid)

    def _dump(self, value: Any) -> Any:
        if isinstance(value, SecretStr | SecretBytes):
            value = value.get_secret_value()
        return value if _is_json(value) else self._adapter.dump_python(value, mode="json")


def declare(argument: Argument, *, keeps_json: bool = False) -> Any:
    """The annotation of a parameter for horsies' workflows."""
    if argument.adapter is None:
        return argument.hint
    checked = Declared(argument, argument.adapter, keeps_json=keeps_json)
    declared: Any = argument.hint
    if keeps_json:
        # Another node may fill it.
        result: Any = TaskResult
        declared = Union.__getitem__((result[declared, TaskError], declared))
    return typing.Annotated[declared, checked]


def describe_errors(argument: Argument, error: ValidationError) -> list[str]:
    """The problems of a value, without the value if that may be a secret."""
    return [_describe(argument, detail) for detail in error.errors()]


def _describe(argument: Argument, error: Any) -> str:
    place = argument.name + "".join(f"[{step!r}]" for step in error["loc"])
    # A nested value may be a secret.
    if error["loc"] or argument.is_secret:
        return f"{place}: {error['msg']}"
    shown = repr(error["input"])
    if len(shown) > MAX_SHOWN_CHARS:
        shown = f"{shown[:MAX_SHOWN_CHARS]}…"
    return f"{place}: {error['msg']} (got {shown})"


def signature_of(annotations: Mapping[str, Any], defaults: Mapping[str, Any]) -> inspect.Signature:
    """Keyword parameters; with their defaults, as a node of a workflow may leave those out."""
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=defaults.get(name, inspect.Parameter.empty),
            )
            for name, hint in annotations.items()
            if name != "return"
        ],
        return_annotation=annotations["return"],
    )


def is_engine_slot(hint: Any) -> bool:
    """Whether horsies' workflows fill the parameter."""
    parts = (hint, *typing.get_args(hint))
    return any(
        typing.get_origin(part) is TaskResult or getattr(part, "__name__", "") in ("WorkflowContext", "WorkflowMeta")
        for part in parts
    )


def _result_of(hint: Any) -> Any:
    """The ``TaskResult[...]`` in an annotation, which may be optional; None if there is none."""
    parts = (hint, *typing.get_args(hint)) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    return next((part for part in parts if typing.get_origin(part) is TaskResult), None)


def _adapter_of_result(hint: Any) -> TypeAdapter[Any] | None:
    result = _result_of(hint)
    if result is None:
        return None
    try:
        return TypeAdapter(typing.get_args(result)[0])
    except PydanticUserError:
        # The value stays as it is.
        return None


def _is_json(value: Any) -> bool:
    match value:
        case None | bool() | int() | float() | str():
            return type(value) in (type(None), bool, int, float, str)
        case list():
            return all(map(_is_json, value))
        case dict():
            return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return False


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
