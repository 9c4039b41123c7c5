"""``@workflow``: make a definition of horsies' workflows of a function."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from horsies import Horsies, WorkflowDefinition, WorkflowSpec

from airflow_horsies.borrowed.horsies import find_definition, forget_definition
from airflow_horsies.core.control import OWN_PREFIX
from airflow_horsies.worker.arguments import APP_PARAMETER, Arguments, TaskDefinitionError, declare

T = TypeVar("T")

# Attributes of a definition.
PLACE = "airflow_horsies_place"
ARGUMENTS = "airflow_horsies_arguments"


def workflow(app: Horsies, name: str) -> Callable[[Callable[..., WorkflowSpec[T]]], type[WorkflowDefinition[T]]]:
    """
    Register a function that builds a workflow as a definition that can be started by its name.

    The function gets the app and the parameters, and returns the nodes as ``app.workflow(...)`` or
    ``WorkflowSpec(...)``. Functions with ``@spark_task`` and ``@python_task`` are nodes as they are.

    .. code-block:: python

        from horsies import TaskNode, WorkflowSpec

        from airflow_horsies.worker import horsies_app, python_task, workflow

        app = horsies_app()

        @python_task(app, "flights.fetch")
        def fetch(*, year: int, month: int) -> str: ...

        @python_task(app, "flights.load")
        def load(*, path: str) -> int: ...

        @workflow(app, "flights.month")
        def month(app, *, year: int, month: int = 1) -> WorkflowSpec[int]:
            fetched = TaskNode(fn=fetch, kwargs={"year": year, "month": month}, node_id="fetch")
            loaded = TaskNode(fn=load, waits_for=[fetched], args_from={"path": fetched}, node_id="load")
            return app.workflow("flights.month", tasks=[fetched, loaded], output=loaded)

    What it returns is a class of horsies. ``SubWorkflowNode(workflow_def=month, kwargs={"year": 2013})`` makes it a
    node of another workflow, and a test builds it with ``month.build_with(app, year=2013)``.

    :param app: the app made by ``horsies_app``.
    :param name: the name under which the workflow is started.
    """

    def register(function: Callable[..., WorkflowSpec[T]]) -> type[WorkflowDefinition[T]]:
        if not isinstance(function, types.FunctionType):
            raise TaskDefinitionError(
                f"Workflow {name!r}: @workflow expects a function, not {function!r}. Write it above a function."
            )
        arguments = Arguments(name, function, kind="workflow", receives=APP_PARAMETER)
        _require_keywords(name, function)
        _require_free_name(name, function)
        definition: type[WorkflowDefinition[T]] = _make_definition(name, function, arguments)
        return definition

    return register


def _make_definition(name: str, function: types.FunctionType, arguments: Arguments) -> Any:
    def build_with(cls: Any, app: Horsies, /, **given: Any) -> Any:
        return function(app, **given)

    own = [inspect.Parameter(known, inspect.Parameter.POSITIONAL_OR_KEYWORD) for known in ("cls", APP_PARAMETER)]
    declared = {argument.name: declare(argument) for argument in arguments}
    keywords = [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=argument.default,
            annotation=declared[argument.name],
        )
        for argument in arguments
    ]
    build_with.__signature__ = inspect.Signature([*own, *keywords])  # type: ignore[attr-defined]
    build_with.__annotations__ = declared
    build_with.__qualname__ = function.__qualname__
    build_with.__module__ = function.__module__
    attributes = {
        "name": name,
        "definition_key": name,
        "build_with": classmethod(build_with),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        PLACE: _place_of(function),
        ARGUMENTS: arguments,
    }
    output = typing.get_args(arguments.hints.get("return")) or (Any,)
    base: Any = WorkflowDefinition
    return types.new_class(function.__name__, (base[output[0]],), {}, lambda namespace: namespace.update(attributes))


def _require_keywords(name: str, function: types.FunctionType) -> None:
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TaskDefinitionError(
                f"Workflow {name!r}: the parameter {parameter.name!r} of {function.__qualname__} must be a keyword "
                f"parameter. Write def {function.__name__}({APP_PARAMETER}, *, {parameter.name}, ...)."
            )


def _require_free_name(name: Any, function: types.FunctionType) -> None:
    if not isinstance(name, str) or not name.strip():
        raise TaskDefinitionError(f"The name of the workflow of {function.__qualname__} must be a text, not {name!r}.")
    if name.startswith(OWN_PREFIX):
        raise TaskDefinitionError(
            f"Workflow {name!r}: names that begin with {OWN_PREFIX!r} are reserved. Choose another name."
        )
    existing = find_definition(name)
    if existing is None:
        return
    if getattr(existing, PLACE, None) != _place_of(function):
        raise TaskDefinitionError(
            f"Workflow {name!r}: {existing.__module__}.{existing.__qualname__} has this name already. Choose another "
            f"name for {function.__module__}.{function.__qualname__}."
        )
    # The same module was imported again, under another name or by a reload.
    forget_definition(name)


def _place_of(function: types.FunctionType) -> tuple[str, int, str]:
    code = function.__code__
    return code.co_filename, code.co_firstlineno, function.__qualname__
