"""Quick tasks that defer, each of another length: with the operator's own settings, and without its inline wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_horsies.operators import HorsiesOperator


class MeasuredOperator(HorsiesOperator):
    """Returns what the hold cost, and nothing where it did not defer."""

    def execute(self, context: Any) -> Any:
        super().execute(context)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        super().execute_complete(context, event)
        return {"held_seconds": event.get("held_seconds", 0.0)}


VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "at_once": {"inline_wait": timedelta(0)}}

for variant, options in VARIANTS.items():
    with DAG(f"deferrals_{variant}", schedule=None, max_active_tasks=16, default_args={"retries": 0}) as dag:

        @task
        def lengths(**context: Any) -> list[dict[str, float]]:
            return [{"seconds": seconds} for seconds in context["dag_run"].conf["seconds"]]

        MeasuredOperator.partial(task_id="nap", task_name="bench.nap", deferrable=True, **options).expand(
            kwargs=lengths()
        )
    globals()[dag.dag_id] = dag
