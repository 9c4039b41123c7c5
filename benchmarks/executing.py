"""An operator's execute() as a task's process calls it, without Airflow around it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar

from airflow_horsies.client.client import Client
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators import HorsiesTaskOperator

Operator = TypeVar("Operator", bound=HorsiesTaskOperator)


def with_hook(kind: type[Operator], hook: HorsiesHook, **params: Any) -> Operator:
    """The operator with its hook at hand; everything else is as in a DAG."""

    class Bench(kind):  # type: ignore[misc, valid-type]
        def _client(self) -> Client:
            return hook.client

    made: Operator = Bench(**params)
    return made


def task_context(number: int) -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="bench", run_id=f"run {number}", task_id="job", map_index=-1, try_number=1, max_tries=0,
        start_date=datetime.now(UTC), xcom_push=lambda **given: None,
    )  # fmt: skip
    ti.task = SimpleNamespace(task_id="job", operator_extra_links=[])
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=datetime.now(UTC)), "run_id": ti.run_id}
