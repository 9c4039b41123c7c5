"""``@task.horsies``: a function that builds the arguments of a registered horsies task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import (
    Context,
    DecoratedOperator,
    TaskDecorator,
    task_decorator_factory,
)

from airflow_horsies.borrowed.airflow import is_from_mapped
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators.batch import HorsiesBatchOperator
from airflow_horsies.operators.task import HorsiesOperator

HORSIES_NAMES = {"queue": "horsies_queue", "retry_policy": "horsies_retry_policy"}


class _CallingOperator(DecoratedOperator):
    """Calls the function in Airflow. Its return value is sent unchanged, never rendered."""

    custom_operator_name = "@task.horsies"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not is_from_mapped(self):
            options = _rename_options(options)  # from override()
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **options)

    def _call(self, context: Context) -> Any:
        arguments = _accepted(self.python_callable, len(self.op_args), {**context, **self.op_kwargs})
        return self.python_callable(*self.op_args, **arguments)


class _HorsiesDecoratedOperator(_CallingOperator, HorsiesOperator):
    """HorsiesOperator whose ``kwargs`` come from a function."""

    # Shows the function's own arguments instead of its return value, which is not available after a deferral.
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in HorsiesOperator.template_fields if name != "task_kwargs"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **HorsiesOperator.template_fields_renderers,
    }

    def execute(self, context: Context) -> Any:
        returned = self._call(context)
        if not isinstance(returned, Mapping):
            raise InvalidTask(
                "kwargs",
                f"function {self.python_callable.__name__} must return a dict with the arguments of horsies task "
                f"{self.task_name!r}, not {type(returned).__name__}",
            )
        self.task_kwargs = returned
        return super().execute(context)


class _HorsiesDecoratedBatchOperator(_CallingOperator, HorsiesBatchOperator):
    """HorsiesBatchOperator whose ``items`` come from a function."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in HorsiesBatchOperator.template_fields if name != "items"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        "horsies_retry_policy": "json",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(items=(), **options)

    def execute(self, context: Context) -> Any:
        returned = self._call(context)
        if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
            raise InvalidTask(
                "items",
                f"function {self.python_callable.__name__} must return a list with the arguments of each item of "
                f"horsies task {self.task_name!r}, not {type(returned).__name__}",
            )
        self.items = list(returned)
        return super().execute(context)


def horsies_task(
    task_name: str, *, batch: bool = False, multiple_outputs: bool = False, **options: Any
) -> TaskDecorator:
    """
    Use a function to build the arguments of a task that is registered on horsies workers: ``@task.horsies``.

    The function runs in Airflow and returns a dict. The horsies task runs on a worker with that dict as its arguments,
    and its return value becomes the XCom. The function's code never leaves Airflow.

    .. code-block:: python

        @task.horsies("sales.load", queue="spark", deferrable=True)
        def load(day: str) -> dict[str, object]:
            return {"day": day, "rows": 1_000}


        load("{{ ds }}")
        load.override(task_id="load_each").expand(day=["2026-01-01", "2026-01-02"])


        @task.horsies("sales.load", batch=True, chunk_size="auto", deferrable=True)
        def load_all(days: list[str]) -> list[dict[str, object]]:
            return [{"day": day, "rows": 1_000} for day in days]


        load_all(["2026-01-01", "2026-01-02"])

    :param task_name: the name under which the task is registered on the workers.
    :param batch: the function returns the arguments of many items. They run as a batch, and the XCom is what
        :class:`~airflow_horsies.operators.HorsiesBatchOperator` returns.
    :param multiple_outputs: push each key of the horsies task's value, which must be a dict, as a separate XCom. It is
        never inferred from the function, because its dict contains the arguments and not the value.
    :param options: the parameters of :class:`~airflow_horsies.operators.HorsiesOperator`, or with ``batch`` of
        :class:`~airflow_horsies.operators.HorsiesBatchOperator`, and of every Airflow task. To
        change the queue or retry policy of a mapped task, use ``override(horsies_queue=…, horsies_retry_policy=…)``.
    """
    if not isinstance(task_name, str):
        raise InvalidTask("task_name", 'must be the name of a registered task, as in @task.horsies("sales.load")')
    for name in ("kwargs", "items"):
        if name in options:
            raise InvalidTask(name, "must not be set for @task.horsies. Return the arguments from the function")
    if not batch:
        for name in ("chunk_size", "isolate", "results", "max_failures", "min_success"):
            if name in options:
                raise InvalidTask(name, "needs batch=True, and a function that returns the items")
    options = _rename_options(options)

    def decorate(function: Callable[..., Any]) -> Any:
        if inspect.iscoroutinefunction(function) or (inspect.isgeneratorfunction(function) and not batch):
            what = ("items", "a list") if batch else ("kwargs", "a dict")
            raise InvalidTask(what[0], f"function {function.__name__} must be a plain function that returns {what[1]}")
        return task_decorator_factory(
            python_callable=function,
            multiple_outputs=multiple_outputs,
            decorated_operator_class=_HorsiesDecoratedBatchOperator if batch else _HorsiesDecoratedOperator,
            task_name=task_name,
            **options,
        )

    return decorate  # type: ignore[return-value]


def _accepted(function: Callable[..., Any], given: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the function accepts by name, after the first ``given`` positional arguments."""
    parameters = list(inspect.signature(function).parameters.values())
    bound = {parameter.name for parameter in parameters[:given]}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return {name: value for name, value in values.items() if name not in bound}
    names = (parameter.name for parameter in parameters)
    return {name: values[name] for name in names if name in values and name not in bound}


def _rename_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """On a mapped task Airflow would use ``queue`` and ``retry_policy`` itself. Of two values the last one counts."""
    return {
        HORSIES_NAMES.get(name, name) if not hasattr(value, "evaluate") else name: value
        for name, value in options.items()
    }
