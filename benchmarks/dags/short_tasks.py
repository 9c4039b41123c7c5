"""As many short tasks as a run is told: in one HorsiesBatchOperator, and as mapped tasks of Airflow."""

from __future__ import annotations

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import dag, task

from airflow_horsies.operators import HorsiesBatchOperator


def add(a: int, b: int) -> int:
    return a + b


@task
def arguments(**context: object) -> list[dict[str, int]]:
    count: int = context["params"]["count"]  # type: ignore[index]
    return [{"a": number, "b": 1} for number in range(count)]


@dag(schedule=None, params={"count": 1_000})
def bench_batch() -> None:
    HorsiesBatchOperator(task_id="add", task_name="bench.add", items=arguments(), deferrable=True)


@dag(schedule=None, params={"count": 1_000}, max_active_tasks=32)
def bench_mapped() -> None:
    PythonOperator.partial(task_id="add", python_callable=add).expand(op_kwargs=arguments())


bench_batch()
bench_mapped()
