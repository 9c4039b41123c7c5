"""Runs one task of a DAG in the process of the test, without Airflow's database, scheduler and triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator, TaskDeferred

RETURN_VALUE = "return_value"


@dataclass
class FakeTaskInstance:
    """The task instance of a task under test. ``xcoms`` contains values by task id and key."""

    task: Any
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    max_tries: int
    start_date: datetime
    xcoms: dict[tuple[str, str], Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[self.task_id, key] = value

    def xcom_pull(self, task_ids: Any = None, key: str = RETURN_VALUE, default: Any = None, **_: Any) -> Any:
        if isinstance(task_ids, list | tuple | set):
            return [self.xcom_pull(task_id, key, default) for task_id in task_ids]
        return self.xcoms.get((task_ids or self.task_id, key), default)

    def get_first_reschedule_date(self, context: Any) -> None:
        return None


def make_context(
    task: BaseOperator,
    *,
    logical_date: datetime | None = None,
    try_number: int = 1,
    map_index: int = -1,
    xcoms: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """
    A context for a task under test, for ``task.execute(context)``.

    .. code-block:: python

        import pytest
        from airflow.providers.common.compat.sdk import TaskDeferred

        with FakeHorsies() as horsies, pytest.raises(TaskDeferred):
            horsies.never_ends("sales.load")
            load.execute(make_context(load))

    :param logical_date: the logical date of the DAG run; default: now. Calls with the same date belong to the same run.
    :param try_number: the number of the try.
    :param map_index: the map index; -1 if the task is not mapped.
    :param xcoms: the values that other tasks returned, by task id.
    :param values: further values of the context, or replacements, such as ``params`` and ``ds``.
    """
    at = logical_date or datetime.now(UTC)
    run_id = values.get("run_id", f"manual__{at.isoformat()}")
    dag = task.get_dag() or SimpleNamespace(dag_id=f"dag_of_{task.task_id}", dagrun_timeout=None)
    ti = FakeTaskInstance(
        task=task,
        dag_id=dag.dag_id,
        run_id=run_id,
        task_id=task.task_id,
        map_index=map_index,
        try_number=try_number,
        max_tries=task.retries or 0,
        start_date=datetime.now(UTC),
        xcoms={(task_id, RETURN_VALUE): value for task_id, value in (xcoms or {}).items()},
    )
    return {
        "task": task,
        "ti": ti,
        "task_instance": ti,
        "dag": dag,
        **_values_of_run(dag.dag_id, run_id, at),
        "params": {},
        **values,
    }


def _values_of_run(dag_id: str, run_id: str, at: datetime) -> dict[str, Any]:
    return {
        "dag_run": SimpleNamespace(dag_id=dag_id, run_id=run_id, start_date=at, logical_date=at, clear_number=0),
        "run_id": run_id,
        "logical_date": at,
        "data_interval_start": at,
        "data_interval_end": at,
        "ds": f"{at:%Y-%m-%d}",
        "ds_nodash": f"{at:%Y%m%d}",
        "ts": at.isoformat(),
    }


def run_task(
    task: BaseOperator,
    *,
    logical_date: datetime | None = None,
    try_number: int = 1,
    map_index: int = -1,
    xcoms: Mapping[str, Any] | None = None,
    **values: Any,
) -> Any:
    """
    Render the templates of a task, execute it, run the trigger it defers to, resume it, and return its value.

    A deferrable operator always defers. As in Airflow, it is resumed on another copy of the task, which has kept
    nothing that ``execute`` stored in ``self``. This needs only Airflow's code, takes milliseconds and does not change
    the task. It does not run dependencies, retries and callbacks: use ``dag.test()`` for these.

    .. code-block:: python

        from datetime import UTC, datetime

        from airflow_horsies.operators import HorsiesOperator
        from airflow_horsies.testing import FakeHorsies, run_task

        load = HorsiesOperator(task_id="load", task_name="sales.load", kwargs={"day": "{{ ds }}"}, deferrable=True)

        with FakeHorsies() as horsies:
            horsies.returns("sales.load", {"rows": 3})
            assert run_task(load, logical_date=datetime(2026, 1, 1, tzinfo=UTC)) == {"rows": 3}
            assert horsies.sent("sales.load") == [{"day": "2026-01-01"}]

    The parameters are the same as those of :func:`make_context`.
    """
    _require_single(task)
    given: dict[str, Any] = {
        "logical_date": logical_date or datetime.now(UTC),
        "try_number": try_number,
        "map_index": map_index,
    }
    first = make_context(task, **given, xcoms=xcoms, **values)["ti"]
    left: TaskDeferred | None = None
    while True:
        process, context = _start_process(task, first, {**given, **values})
        try:
            if left is None:
                return process.execute(context)
            event = asyncio.run(_first_event(left.trigger))
            return process.resume_execution(left.method_name, {**(left.kwargs or {}), "event": event}, context)
        except TaskDeferred as deferral:
            left = deferral


def _require_single(task: Any) -> None:
    if not isinstance(task, BaseOperator):
        raise TypeError(
            f"{task.task_id} is a mapped task, but run_task runs one task instance. Run the DAG with dag.test(), or "
            "create an operator with one item for the test."
        )


def _start_process(task: BaseOperator, first: Any, values: Mapping[str, Any]) -> tuple[BaseOperator, Any]:
    """A copy of the task that has kept nothing of another process, and its context; XComs and the start are kept."""
    process = task.prepare_for_execution()
    for name, value in vars(process).items():
        if type(value) in (list, dict, set):
            vars(process)[name] = copy(value)
    context: Any = make_context(process, **values)
    if isinstance(context["ti"], FakeTaskInstance):
        context["ti"].xcoms, context["ti"].start_date = first.xcoms, first.start_date
    process.render_template_fields(context)
    return process, context


async def _first_event(trigger: Any) -> Any:
    """The first event of the trigger, created from its serialized form as a triggerer does."""
    path, kwargs = trigger.serialize()
    async with aclosing(resolve_name(path)(**kwargs).run()) as events:
        return (await anext(events)).payload
